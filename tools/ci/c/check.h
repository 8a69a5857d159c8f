/* What the programs of this folder share. */
#ifndef CHECK_H
#define CHECK_H

#include <moeflux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTION "[{\"role\": \"user\", \"content\": \"What is 23 + 45?\"}]"
#define LONG "[{\"role\": \"user\", \"content\": \"What does `Vec::push` do?\"}]"

/* Ends the program where a call has another status than the wanted one. */
#define WANT(wanted, call)                                                                             \
    do {                                                                                               \
        int32_t want_status = (call);                                                                  \
        if (want_status != (wanted)) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #call,                      \
                    moeflux_status_name(want_status), moeflux_status_name(wanted));                    \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);              \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

/* Opens the model for that number of answers and sessions at a time. */
static inline moeflux_model *open_model(const char *path, const char *sessions, moeflux_error *error)
{
    moeflux_options *options;
    moeflux_model *model;
    WANT(MOEFLUX_OK, moeflux_options_new(&options, error));
    WANT(MOEFLUX_OK, moeflux_options_set(options, "sessions", sessions, error));
    WANT(MOEFLUX_OK, moeflux_options_set(options, "ctx", "256", error));
    WANT(MOEFLUX_OK, moeflux_options_set(options, "threads", "1", error));
    WANT(MOEFLUX_OK, moeflux_open(path, options, NULL, NULL, &model, error));
    WANT(MOEFLUX_OK, moeflux_options_free(options));
    return model;
}

/* Answers a conversation step by step, and checks its text where `wanted` is not null. */
static inline void answer_all(moeflux_model *model, const char *messages, const char *wanted, moeflux_error *error)
{
    char text[4096] = "";
    size_t n_text = 0;
    moeflux_answer *answer;
    moeflux_status status;
    moeflux_piece kind;
    const char *data;
    size_t n_bytes;
    WANT(MOEFLUX_OK, moeflux_chat(model, messages, NULL, &answer, error));
    while ((status = moeflux_answer_next(answer, &kind, &data, &n_bytes, error)) == MOEFLUX_OK) {
        CHECK(kind == MOEFLUX_TEXT && strlen(data) == n_bytes && n_text + n_bytes < sizeof text);
        memcpy(text + n_text, data, n_bytes + 1);
        n_text += n_bytes;
    }
    WANT(MOEFLUX_END, status);
    CHECK(!wanted || strcmp(text, wanted) == 0);
    WANT(MOEFLUX_OK, moeflux_answer_free(answer));
}

#endif
