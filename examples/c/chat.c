/*
 * A conversation with a model: each argument is a message, and answers are printed while they are made.
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs moeflux)
 *     ./chat models/qwen3.6-35b-a3b 'Why is the sky blue?' 'And at night?'
 */
#include <moeflux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static moeflux_error *error;

/* Ends the program where a call failed, with what it said. */
static void check(moeflux_status status)
{
    if (status < 0) {
        const char *option = moeflux_error_option(error);
        fprintf(stderr, "\n%s: %s%s%s\n", moeflux_status_name(status), moeflux_error_text(error),
                *option ? "; option: " : "", option);
        exit(1);
    }
}

/* A text that grows. */
struct text {
    char *data;
    size_t n_bytes;
};

static void append(struct text *text, const char *more)
{
    size_t n_more = strlen(more);
    char *data = realloc(text->data, text->n_bytes + n_more + 1);
    if (!data) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    memcpy(data + text->n_bytes, more, n_more + 1);
    text->data = data;
    text->n_bytes += n_more;
}

/* Appends a string of JSON. */
static void append_quoted(struct text *text, const char *plain)
{
    append(text, "\"");
    for (; *plain; plain++) {
        char escaped[8];
        unsigned char byte = (unsigned char)*plain;
        if (byte < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        else
            snprintf(escaped, sizeof escaped, "%s%c", strchr("\"\\", byte) ? "\\" : "", byte);
        append(text, escaped);
    }
    append(text, "\"");
}

/* Gets the answer piece by piece. Thoughts and calls of tools are left out. */
static int32_t print_piece(void *user, moeflux_piece kind, const char *data, size_t n_bytes)
{
    (void)user;
    if (kind == MOEFLUX_TEXT) {
        fwrite(data, 1, n_bytes, stdout);
        fflush(stdout);
    }
    return 0;
}

static int32_t print_progress(void *what, uint64_t done, uint64_t total)
{
    fprintf(stderr, "\r%s: %3.0f %%", (const char *)what, total ? 100.0 * (double)done / (double)total : 100.0);
    return 0;
}

/* Answers the conversation, and adds the answer to it. */
static void respond(moeflux_model *model, struct text *messages)
{
    struct text closed = {0};
    moeflux_answer *answer;
    moeflux_text *message, *summary;
    const char *json;

    append(&closed, messages->data);
    append(&closed, "]");
    check(moeflux_chat(model, closed.data, NULL, &answer, error));
    check(moeflux_answer_run(answer, print_piece, NULL, NULL, error));
    puts("");

    check(moeflux_answer_message(answer, &message, error));
    check(moeflux_text_get(message, &json, NULL, error));
    append(messages, ", ");
    append(messages, json);
    moeflux_text_free(message);

    check(moeflux_answer_summary(answer, &summary, error));
    check(moeflux_text_get(summary, &json, NULL, error));
    fprintf(stderr, "%s\n", json);
    moeflux_text_free(summary);
    moeflux_answer_free(answer);
    free(closed.data);
}

int main(int argc, char **argv)
{
    moeflux_model *model;
    struct text messages = {0};

    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL MESSAGE...\n", argv[0]);
        return 2;
    }
    if (moeflux_abi_version() != MOEFLUX_ABI_VERSION) {
        fputs("the library has another version than moeflux.h\n", stderr);
        return 1;
    }
    check(moeflux_error_new(&error));
    check(moeflux_open(argv[1], NULL, print_progress, "loading", &model, error));
    fputs("\n", stderr);
    for (int i = 2; i < argc; i++) {
        append(&messages, i == 2 ? "[" : ", ");
        append(&messages, "{\"role\": \"user\", \"content\": ");
        append_quoted(&messages, argv[i]);
        append(&messages, "}");
        respond(model, &messages);
    }
    free(messages.data);
    moeflux_model_free(model);
    moeflux_error_free(error);
    return 0;
}
