// Which of several texts a model finds likeliest after a question: C++ with handles that free themselves, a session,
// its logits, and a checkpoint that the session goes back to.
//
//     c++ -std=c++17 embed.cpp -o embed $(pkg-config --cflags --libs moeflux)
//     ./embed models/qwen3.6-35b-a3b 'What is 23 + 45?' 67 68 69
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <moeflux.h>

template <typename T, moeflux_status (*Free)(T *)>
struct Freed {
    void operator()(T *handle) const { Free(handle); }
};

template <typename T, moeflux_status (*Free)(T *)>
using Handle = std::unique_ptr<T, Freed<T, Free>>;

using Error = Handle<moeflux_error, moeflux_error_free>;
using Model = Handle<moeflux_model, moeflux_model_free>;
using Options = Handle<moeflux_options, moeflux_options_free>;
using Session = Handle<moeflux_session, moeflux_session_free>;
using Tokens = Handle<moeflux_tokens, moeflux_tokens_free>;

// The library, with exceptions in place of statuses.
class Library {
public:
    Library()
    {
        moeflux_error *made = nullptr;
        moeflux_error_new(&made);
        error.reset(made);
    }

    void check(moeflux_status status) const
    {
        if (status < 0)
            throw std::runtime_error(moeflux_error_text(error.get()));
    }

    // Calls a function whose last arguments are the place of a handle and the error object.
    template <typename H, typename F, typename... Arguments>
    H make(F function, Arguments... arguments) const
    {
        typename H::pointer made = nullptr;
        check(function(arguments..., &made, error.get()));
        return H(made);
    }

    std::vector<uint32_t> ids(const Tokens &tokens) const
    {
        const uint32_t *first = nullptr;
        size_t n = 0;
        check(moeflux_tokens_get(tokens.get(), &first, &n, error.get()));
        return {first, first + n};
    }

    Error error;
};

// The logarithm of a token's probability by logits.
static double log_probability(const float *logits, size_t n, uint32_t token)
{
    const double most = *std::max_element(logits, logits + n);
    const double sum = std::accumulate(logits, logits + n, 0.0,
                                       [&](double part, float logit) { return part + std::exp(logit - most); });
    return logits[token] - most - std::log(sum);
}

static void rank(const char *path, const std::string &question, const std::vector<std::string_view> &candidates)
{
    const Library library;
    moeflux_error *error = library.error.get();
    const auto options = library.make<Options>(moeflux_options_new);
    library.check(moeflux_options_set(options.get(), "ctx", "1024", error));
    const auto model = library.make<Model>(moeflux_open, path, options.get(), nullptr, nullptr);
    const auto session = library.make<Session>(moeflux_session_new, model.get());

    // A question with quotes would need a JSON library, which programs of this size have.
    const std::string messages = R"([{"role": "user", "content": ")" + question + R"("}])";
    moeflux_tokens *made = nullptr;
    library.check(moeflux_chat_prompt(model.get(), messages.c_str(), nullptr, nullptr, &made, error));
    const auto prompt = library.ids(Tokens(made));
    // The last token is evaluated with each candidate, so that there are logits again after going back.
    const size_t shared = prompt.size() - 1;
    library.check(moeflux_session_evaluate(session.get(), prompt.data(), shared, nullptr, nullptr, error));
    library.check(moeflux_session_checkpoint(session.get(), error));

    for (const auto candidate : candidates) {
        const auto tokens = library.ids(library.make<Tokens>(moeflux_tokenize, model.get(), candidate.data(),
                                                             candidate.size(), MOEFLUX_LITERAL));
        double sum = 0;
        uint32_t before = prompt.back();
        for (const uint32_t token : tokens) {
            const float *logits = nullptr;
            size_t n = 0;
            library.check(moeflux_session_evaluate(session.get(), &before, 1, nullptr, nullptr, error));
            library.check(moeflux_session_logits(session.get(), &logits, &n, error));
            sum += log_probability(logits, n, token);
            before = token;
        }
        std::printf("%9.4f  %.*s\n", sum, static_cast<int>(candidate.size()), candidate.data());
        library.check(moeflux_session_restore(session.get(), shared, error));
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        std::fprintf(stderr, "usage: %s MODEL QUESTION TEXT...\n", argv[0]);
        return 2;
    }
    try {
        rank(argv[1], argv[2], {argv + 3, argv + argc});
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}
