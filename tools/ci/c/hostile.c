/* Calls that no program should make: each gets a status, and the library goes on. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static moeflux_error *error;

static void wrong_handles(moeflux_model *model)
{
    moeflux_text *text = NULL;
    moeflux_tokens *tokens = NULL;
    moeflux_answer *answer = NULL;
    moeflux_session *session = NULL;
    moeflux_request *freed;
    const char *data;
    size_t n;
    int local = 0;
    WANT(MOEFLUX_OK, moeflux_request_new(&freed, error));
    WANT(MOEFLUX_OK, moeflux_request_free(freed));
    /* Null, freed, of another type, a number, an address of this program. */
    void *wrong[] = {NULL, freed, error, (void *)1, (void *)UINTPTR_MAX, &local};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *handle = wrong[i];
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_model_info(handle, &text, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_chat(handle, QUESTION, NULL, &answer, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_tokenize(handle, "a", 1, MOEFLUX_LITERAL, &tokens, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_session_new(handle, &session, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_answer_run(handle, NULL, NULL, NULL, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_answer_cancel(handle, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_session_checkpoint(handle, error));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_text_get(handle, &data, &n, error));
        CHECK(*moeflux_error_text(error) && moeflux_error_text(handle) && moeflux_error_option(handle));
        if (handle)
            WANT(MOEFLUX_ERROR_HANDLE, moeflux_model_free(handle));
        /* A wrong error object is no reason to refuse the call. */
        if (handle != error) {
            WANT(MOEFLUX_OK, moeflux_model_info(model, &text, handle));
            WANT(MOEFLUX_OK, moeflux_text_free(text));
        }
    }
    CHECK(!answer && !session && !tokens);
    WANT(MOEFLUX_ERROR_HANDLE, moeflux_text_free(text));
}

static void wrong_arguments(moeflux_model *model)
{
    moeflux_answer *answer;
    moeflux_tokens *tokens;
    moeflux_session *session;
    moeflux_text *text;
    const float *logits;
    size_t n;
    uint32_t token = 1;
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_chat(model, NULL, NULL, &answer, error));
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_chat(model, QUESTION, NULL, NULL, error));
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_chat(model, "\xff\xfe", NULL, &answer, error));
    WANT(MOEFLUX_ERROR_REQUEST, moeflux_chat(model, "[", NULL, &answer, error));
    CHECK(strcmp(moeflux_error_option(error), "messages") == 0);
    static const char *const wrong[][2] = {
        {"tools", "[1]"}, {"tools", "[{\"type\": \"function\"}]"}, {"format", "5"}, {"logit_bias", "{\"4000000\": 1}"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        moeflux_request *request;
        WANT(MOEFLUX_OK, moeflux_request_new(&request, error));
        WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_request_set(request, wrong[i][0], "\xff", error));
        CHECK(strstr(moeflux_error_text(error), wrong[i][0]));
        WANT(MOEFLUX_OK, moeflux_request_set(request, wrong[i][0], wrong[i][1], error));
        WANT(MOEFLUX_ERROR_REQUEST, moeflux_chat(model, QUESTION, request, &answer, error));
        CHECK(strstr(moeflux_error_text(error), i == 3 ? "4000000" : wrong[i][0]));
        WANT(MOEFLUX_OK, moeflux_request_free(request));
    }
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_tokenize(model, "a", SIZE_MAX - 1, MOEFLUX_LITERAL, &tokens, error));
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_tokenize(model, "a", 1, 99, &tokens, error));
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_detokenize(model, &token, SIZE_MAX / 4, &text, error));
    WANT(MOEFLUX_OK, moeflux_session_new(model, &session, error));
    WANT(MOEFLUX_ERROR_ORDER, moeflux_session_logits(session, &logits, &n, error));
    WANT(MOEFLUX_ERROR_ORDER, moeflux_session_sample(session, NULL, &token, error));
    WANT(MOEFLUX_ERROR_REQUEST, moeflux_session_evaluate(session, &token, SIZE_MAX, NULL, NULL, error));
    WANT(MOEFLUX_ERROR_REQUEST, moeflux_session_evaluate(session, &token, 0, NULL, NULL, error));
    token = UINT32_MAX;
    WANT(MOEFLUX_ERROR_REQUEST, moeflux_session_evaluate(session, &token, 1, NULL, NULL, error));
    CHECK(moeflux_session_load(session, "/nowhere", error) < 0);
    CHECK(moeflux_session_truncate(session, 7, NULL, error) < 0);
    CHECK(moeflux_session_restore(session, 7, error) < 0);
    WANT(MOEFLUX_OK, moeflux_session_free(session));
    WANT(MOEFLUX_ERROR_HANDLE, moeflux_session_free(session));
}

/* Logits are read to their last float: the sanitizer knows how many there are. */
static void whole_logits(moeflux_model *model)
{
    moeflux_tokens *tokens;
    moeflux_session *session;
    const uint32_t *ids;
    const float *logits;
    size_t n, n_logits;
    float sum = 0;
    WANT(MOEFLUX_OK, moeflux_tokenize(model, "Hello", MOEFLUX_TO_NUL, MOEFLUX_PROMPT, &tokens, error));
    WANT(MOEFLUX_OK, moeflux_tokens_get(tokens, &ids, &n, error));
    WANT(MOEFLUX_OK, moeflux_session_new(model, &session, error));
    WANT(MOEFLUX_OK, moeflux_session_evaluate(session, ids, n, NULL, NULL, error));
    WANT(MOEFLUX_OK, moeflux_session_logits(session, &logits, &n_logits, error));
    for (size_t i = 0; i < n_logits; i++)
        sum += logits[i];
    CHECK(sum == sum && n_logits > 0);
    WANT(MOEFLUX_OK, moeflux_tokens_free(tokens));
    WANT(MOEFLUX_OK, moeflux_session_free(session));
}

static int32_t uses_itself(void *user, moeflux_piece kind, const char *data, size_t n_bytes)
{
    moeflux_answer **answer = user;
    (void)kind, (void)data, (void)n_bytes;
    if (*answer) {
        WANT(MOEFLUX_ERROR_IN_USE, moeflux_answer_run(*answer, NULL, NULL, NULL, NULL));
        WANT(MOEFLUX_OK, moeflux_answer_cancel(*answer, NULL));
        WANT(MOEFLUX_OK, moeflux_answer_free(*answer));
        WANT(MOEFLUX_ERROR_HANDLE, moeflux_answer_cancel(*answer, NULL));
        *answer = NULL;
    }
    return 0;
}

static void callbacks(moeflux_model *model)
{
    moeflux_answer *answer;
    moeflux_text *summary;
    WANT(MOEFLUX_OK, moeflux_chat(model, LONG, NULL, &answer, error));
    WANT(MOEFLUX_ERROR_ORDER, moeflux_answer_summary(answer, &summary, error));
    WANT(MOEFLUX_OK, moeflux_answer_run(answer, uses_itself, NULL, &answer, error));
    CHECK(!answer);
    /* Answers that are left in the middle. */
    for (int i = 0; i < 5; i++) {
        WANT(MOEFLUX_OK, moeflux_chat(model, LONG, NULL, &answer, error));
        WANT(MOEFLUX_OK, moeflux_answer_free(answer));
    }
}

static int32_t stops(void *user, uint64_t done, uint64_t total)
{
    (void)user, (void)done, (void)total;
    return 1;
}

static void stopped_opening(const char *path)
{
    moeflux_model *model;
    for (int i = 0; i < 3; i++) {
        WANT(MOEFLUX_ERROR_CANCELLED, moeflux_open(path, NULL, stops, NULL, &model, error));
        CHECK(!model);
    }
}

/* A fork of a process that uses the library. */
static void forked(moeflux_model *model)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        moeflux_text *text;
        /* Ends without what ends a process, which belongs to the parent. */
        _exit(moeflux_model_info(model, &text, error) == MOEFLUX_ERROR_FORKED ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    moeflux_model *model;
    CHECK(argc == 2);
    WANT(MOEFLUX_ERROR_ARGUMENT, moeflux_error_new(NULL));
    WANT(MOEFLUX_OK, moeflux_error_new(&error));
    WANT(MOEFLUX_ERROR_MODEL, moeflux_open("/nowhere", NULL, NULL, NULL, &model, error));
    CHECK(strstr(moeflux_error_text(error), "/nowhere"));
    stopped_opening(argv[1]);
    model = open_model(argv[1], "2", error);
    wrong_handles(model);
    wrong_arguments(model);
    whole_logits(model);
    callbacks(model);
    forked(model);
    answer_all(model, QUESTION, "68", error);
    WANT(MOEFLUX_OK, moeflux_model_free(model));
    WANT(MOEFLUX_ERROR_HANDLE, moeflux_model_free(model));
    WANT(MOEFLUX_OK, moeflux_error_free(error));
    WANT(MOEFLUX_ERROR_HANDLE, moeflux_error_free(error));
    CHECK(moeflux_live_handles() == 0);
    puts("hostile calls: each got its status");
    return 0;
}
