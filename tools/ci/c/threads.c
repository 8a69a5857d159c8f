/* Threads that share a model, an answer that another thread ends or frees, and one that two threads want. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, ANSWERS = 6 };

struct shared {
    moeflux_model *model;
    moeflux_answer *answer;
    moeflux_status (*act)(moeflux_answer *answer, moeflux_error *error);
};

static void *answers(void *argument)
{
    struct shared *shared = argument;
    moeflux_error *error;
    WANT(MOEFLUX_OK, moeflux_error_new(&error));
    for (int i = 0; i < ANSWERS; i++)
        answer_all(shared->model, QUESTION, "68", error);
    WANT(MOEFLUX_OK, moeflux_error_free(error));
    return NULL;
}

static void *acts(void *argument)
{
    struct shared *shared = argument;
    moeflux_status status = shared->act(shared->answer, NULL);
    CHECK(status == MOEFLUX_OK || status == MOEFLUX_END || status == MOEFLUX_ERROR_IN_USE);
    return NULL;
}

static moeflux_status free_it(moeflux_answer *answer, moeflux_error *error)
{
    (void)error;
    return moeflux_answer_free(answer);
}

static moeflux_status take_piece(moeflux_answer *answer, moeflux_error *error)
{
    moeflux_piece kind;
    const char *data;
    return moeflux_answer_next(answer, &kind, &data, NULL, error);
}

/* Takes pieces while another thread acts on the answer. */
static void disturbed(moeflux_model *model, moeflux_status (*act)(moeflux_answer *, moeflux_error *))
{
    struct shared shared = {model, NULL, act};
    pthread_t other;
    moeflux_piece kind;
    const char *data;
    moeflux_status status;
    WANT(MOEFLUX_OK, moeflux_chat(model, LONG, NULL, &shared.answer, NULL));
    CHECK(pthread_create(&other, NULL, acts, &shared) == 0);
    do
        status = moeflux_answer_next(shared.answer, &kind, &data, NULL, NULL);
    while (status == MOEFLUX_OK || status == MOEFLUX_ERROR_IN_USE);
    CHECK(status == MOEFLUX_END || (act == free_it && status == MOEFLUX_ERROR_HANDLE));
    CHECK(pthread_join(other, NULL) == 0);
    WANT(act == free_it ? MOEFLUX_ERROR_HANDLE : MOEFLUX_OK, moeflux_answer_free(shared.answer));
}

int main(int argc, char **argv)
{
    struct shared shared = {NULL, NULL, NULL};
    pthread_t threads[THREADS];
    moeflux_error *error;
    CHECK(argc == 2);
    WANT(MOEFLUX_OK, moeflux_error_new(&error));
    shared.model = open_model(argv[1], "3", error);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, answers, &shared) == 0);
    for (int i = 0; i < 3; i++) {
        disturbed(shared.model, moeflux_answer_cancel);
        disturbed(shared.model, free_it);
        disturbed(shared.model, take_piece);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    WANT(MOEFLUX_OK, moeflux_model_free(shared.model));
    WANT(MOEFLUX_OK, moeflux_error_free(error));
    CHECK(moeflux_live_handles() == 0);
    puts("threads: each got its answers");
    return 0;
}
