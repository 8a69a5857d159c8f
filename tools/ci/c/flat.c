/*
 * Memory after many answers and sessions: what the last ones add to the process.
 *
 *     flat MODEL ROUNDS LIMIT     LIMIT in KiB
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

/* Memory that is of no file: pages of a model's mapped files come and go with the system's wishes. */
static long anonymous_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1)
            break;
    fclose(file);
    CHECK(kib > 0);
    return kib;
}

/* An answer, one that is left in the middle, a session, a failure. */
static void work(moeflux_model *model, moeflux_error *error)
{
    moeflux_answer *answer;
    moeflux_session *session;
    moeflux_text *text;
    uint32_t token = 1;
    answer_all(model, QUESTION, "68", error);
    WANT(MOEFLUX_OK, moeflux_chat(model, LONG, NULL, &answer, error));
    WANT(MOEFLUX_OK, moeflux_answer_message(answer, &text, error));
    WANT(MOEFLUX_OK, moeflux_text_free(text));
    WANT(MOEFLUX_OK, moeflux_answer_free(answer));
    WANT(MOEFLUX_OK, moeflux_session_new(model, &session, error));
    WANT(MOEFLUX_OK, moeflux_session_evaluate(session, &token, 1, NULL, NULL, error));
    WANT(MOEFLUX_OK, moeflux_session_free(session));
    WANT(MOEFLUX_ERROR_REQUEST, moeflux_chat(model, "{}", NULL, &answer, error));
}

int main(int argc, char **argv)
{
    moeflux_model *model;
    moeflux_error *error;
    long before, grown;
    CHECK(argc == 4);
    const int n_rounds = atoi(argv[2]);
    WANT(MOEFLUX_OK, moeflux_error_new(&error));
    model = open_model(argv[1], "2", error);
    /* Caches and the allocator's pools fill. */
    for (int i = 0; i < n_rounds / 2; i++)
        work(model, error);
    before = anonymous_kib();
    for (int i = 0; i < n_rounds / 2; i++)
        work(model, error);
    grown = anonymous_kib() - before;
    fprintf(stderr, "memory: the last %d of %d rounds added %ld KiB to %ld\n", n_rounds / 2, n_rounds, grown, before);
    CHECK(grown <= atol(argv[3]));
    WANT(MOEFLUX_OK, moeflux_model_free(model));
    WANT(MOEFLUX_OK, moeflux_error_free(error));
    CHECK(moeflux_live_handles() == 0);
    return 0;
}
