/*
 * moeflux: runs Mixture-of-Experts language models larger than memory. The C interface.
 *
 * HANDLES. All objects are behind handles: pointers to types that are never defined, made by moeflux_*_new,
 * moeflux_open and the like, and freed by moeflux_*_free. The value of a handle is a number of the library's
 * table of live objects, and no address. So a handle that is null, was freed, is of another type or was
 * made up is found out by every call, which returns MOEFLUX_ERROR_HANDLE and does nothing else. Numbers
 * are not used twice. A null handle can be freed; a null moeflux_options or moeflux_request has all defaults;
 * a null moeflux_error receives no text.
 *
 * STATUS AND TEXT. Functions return a moeflux_status; failures are negative. What went wrong, in one line,
 * and the name of the option at fault are written to the moeflux_error that the call gets as its last
 * argument. It is an argument and no state of a thread, because callers of languages whose tasks change
 * threads between two calls would read another task's; and it is made once and used again, so that a
 * failure whose text is not wanted leaks nothing. A call that succeeds does not change it.
 * Results of a failed call are null or 0.
 *
 * OWNERSHIP. What a function gives out as a handle is the caller's to free, in any order: a model ends with
 * its last answer and session, and options and requests can be freed as soon as they were used. What it gives
 * out as a plain pointer (texts, tokens, logits, pieces) is the library's; the function says how long it is
 * valid. What the caller gives in is read during the call and not kept. Never free() anything of the library.
 *
 * THREADS. Every function may be called from every thread. Models may be used by several threads at once:
 * their answers share steps. An answer, a session, options or a request take one call at a time; a second one
 * returns MOEFLUX_ERROR_IN_USE at once. Two calls need no such care: moeflux_answer_cancel, and freeing, which
 * takes effect when the other call returns. An error object is used by one thread at a time.
 * A model has one thread that runs its steps, and a pool of threads that compute. In a fork of a process that
 * called the library before, all calls return MOEFLUX_ERROR_FORKED. A library that was loaded by dlopen stays
 * loaded: its threads may still run.
 *
 * CALLBACKS come on the thread of the call that got them, during it. They may call any function; one that uses
 * the object of the call itself returns MOEFLUX_ERROR_IN_USE. They must return: longjmp and C++ exceptions must
 * not leave them.
 *
 * TEXT is UTF-8 and checked. Arguments that have a length may hold NULs; MOEFLUX_TO_NUL as the length means
 * that the text ends with the first one. Paths are bytes on Unix, UTF-8 elsewhere.
 *
 * WHAT BLOCKS. moeflux_open reads all dense weights. moeflux_chat and moeflux_generate make tokens of the prompt
 * and return; moeflux_answer_next and moeflux_answer_run wait for the model. moeflux_session_evaluate computes.
 *
 * INPUT AND OUTPUT. A model reads its own files, experts while it runs included. It writes nothing unless an
 * option names a place, opens no connection and reads no environment variable. It prints nothing but a line on
 * standard error for a fault of its own (MOEFLUX_ERROR_INTERNAL). It installs no handler of signals; where
 * another program cuts a model's file that is mapped, the system sends SIGBUS.
 *
 * TRUST. Texts of messages never become control tokens. A chat template is a program that comes with the model:
 * it runs in this process, with limits of depth and work.
 *
 * VERSIONS. No type of this header has a size that a program depends on, and options are set by name, so that
 * what is added breaks no program. MOEFLUX_ABI_VERSION changes where a function changes.
 *
 * Written by cbindgen from crates/moeflux-c; change it there.
 */

#ifndef MOEFLUX_H
#define MOEFLUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** A length that means: up to the first NUL. */
#define MOEFLUX_TO_NUL SIZE_MAX

/**
 * The version of this interface. Libraries with the same number take the same calls; later ones of that
 * number may have more functions, options and statuses.
 */
#define MOEFLUX_ABI_VERSION 1

/**
 * What a call came to. Failures are negative.
 */
enum moeflux_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Done.
     */
    MOEFLUX_OK = 0,
    /**
     * There is nothing more: the answer has ended.
     */
    MOEFLUX_END = 1,
    /**
     * An argument cannot be used: a null pointer, a length that no memory has, text that is not UTF-8.
     */
    MOEFLUX_ERROR_ARGUMENT = -1,
    /**
     * A handle is null, was freed, is one of another type, or was never given out.
     */
    MOEFLUX_ERROR_HANDLE = -2,
    /**
     * Another call uses the object now: one of another thread, or the one whose callback this is.
     */
    MOEFLUX_ERROR_IN_USE = -3,
    /**
     * The call needs another one before it, such as logits an evaluation.
     */
    MOEFLUX_ERROR_ORDER = -4,
    /**
     * A callback asked to stop.
     */
    MOEFLUX_ERROR_CANCELLED = -5,
    /**
     * The process is a fork of the one that uses the library.
     */
    MOEFLUX_ERROR_FORKED = -6,
    /**
     * Files of the model are missing, damaged, or of no kind that is read.
     */
    MOEFLUX_ERROR_MODEL = -10,
    /**
     * An option is unknown, or makes no sense for the model or the machine.
     */
    MOEFLUX_ERROR_OPTION = -11,
    /**
     * Memory does not suffice.
     */
    MOEFLUX_ERROR_MEMORY = -12,
    /**
     * A part of a request cannot be used.
     */
    MOEFLUX_ERROR_REQUEST = -13,
    /**
     * The model can do no such thing: it has no chat template, or one that renders no tools.
     */
    MOEFLUX_ERROR_UNSUPPORTED = -14,
    /**
     * Too many answers wait already.
     */
    MOEFLUX_ERROR_BUSY = -15,
    /**
     * The model's thread ended before the answer did.
     */
    MOEFLUX_ERROR_STOPPED = -16,
    /**
     * The machine failed: a device, a drive, a thread that the system does not start.
     */
    MOEFLUX_ERROR_MACHINE = -17,
    /**
     * A fault of the library. What the call used is not to be used again, only freed.
     */
    MOEFLUX_ERROR_INTERNAL = -99,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum moeflux_status moeflux_status;
#else
typedef int32_t moeflux_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a piece of an answer is.
 */
enum moeflux_piece
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * More of the answer's text.
     */
    MOEFLUX_TEXT = 0,
    /**
     * More of what the model thinks before it answers.
     */
    MOEFLUX_THOUGHT = 1,
    /**
     * A whole call of a tool: a JSON object as in `tool_calls` of the OpenAI API.
     */
    MOEFLUX_CALL = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum moeflux_piece moeflux_piece;
#else
typedef int32_t moeflux_piece;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How text becomes tokens.
 */
enum moeflux_markup
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * `<|im_end|>` is ten characters: for text of users, which becomes no control token.
     */
    MOEFLUX_LITERAL = 0,
    /**
     * `<|im_end|>` is a control token: for a program's own prompt. The token that begins every text,
     * where the model has one, comes first.
     */
    MOEFLUX_PROMPT = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum moeflux_markup moeflux_markup;
#else
typedef int32_t moeflux_markup;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * An answer while it is made.
 */
typedef struct moeflux_answer moeflux_answer;

/**
 * What the last failed call said that got this object.
 */
typedef struct moeflux_error moeflux_error;

/**
 * A loaded model.
 */
typedef struct moeflux_model moeflux_model;

/**
 * How a model is opened: names with values.
 */
typedef struct moeflux_options moeflux_options;

/**
 * How an answer is made: names with values.
 */
typedef struct moeflux_request moeflux_request;

/**
 * Tokens, and what a model has computed of them.
 */
typedef struct moeflux_session moeflux_session;

/**
 * A text that the library made. It does not change.
 */
typedef struct moeflux_text moeflux_text;

/**
 * A list of tokens that the library made. It does not change.
 */
typedef struct moeflux_tokens moeflux_tokens;

/**
 * Learns how much of some work is done. Called on the thread of the call that does the work. Any other
 * number than 0 ends the work, and the call returns `MOEFLUX_ERROR_CANCELLED`.
 */
typedef int32_t (*moeflux_progress)(void *user, uint64_t done, uint64_t total);

/**
 * Gets a piece of an answer: UTF-8 with a NUL after it, valid during the callback. Called on the thread
 * of `moeflux_answer_run`. Any other number than 0 ends the answer.
 */
typedef int32_t (*moeflux_on_piece)(void *user, moeflux_piece kind, const char *data, size_t n_bytes);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The `MOEFLUX_ABI_VERSION` of the library that runs. A program compares it with that of its header.
 */
uint32_t moeflux_abi_version(void);

/**
 * The version of the library, such as `0.1.0`.
 */
const char *moeflux_version(void);

/**
 * The name of a status, such as `MOEFLUX_ERROR_OPTION`; a text for other numbers, too.
 */
const char *moeflux_status_name(int32_t status);

/**
 * How many handles of the process are not freed. For tests of a program: checkers of leaks do not report
 * objects of handles, since the library's table holds them.
 */
size_t moeflux_live_handles(void);

/**
 * Makes an object for texts of failures. Calls that fail write to the one that they get; a thread makes
 * one and uses it for all of its calls.
 */
moeflux_status moeflux_error_new(moeflux_error **error);

/**
 * What the last failed call said that got this object: one line that names the file or the value, and
 * a remedy where there is one; empty where none failed. Valid until the next call that gets the object.
 * Never null, not even for a wrong handle.
 */
const char *moeflux_error_text(moeflux_error *error);

/**
 * The option at fault, or one of which another value helps, by the name that a setter takes; empty where
 * there is none. Valid as the text is, and never null.
 */
const char *moeflux_error_option(moeflux_error *error);

/**
 * Frees an error object.
 */
moeflux_status moeflux_error_free(moeflux_error *error);

/**
 * The bytes of a text: UTF-8, with a NUL after them that `n_bytes` does not count. Valid until the text
 * is freed. `n_bytes` may be null.
 */
moeflux_status moeflux_text_get(moeflux_text *text, const char **data, size_t *n_bytes, moeflux_error *error);

/**
 * Frees a text.
 */
moeflux_status moeflux_text_free(moeflux_text *text);

/**
 * The ids of a list of tokens. Valid until the list is freed.
 */
moeflux_status moeflux_tokens_get(moeflux_tokens *tokens,
                                  const uint32_t **ids,
                                  size_t *n_tokens,
                                  moeflux_error *error);

/**
 * Frees a list of tokens.
 */
moeflux_status moeflux_tokens_free(moeflux_tokens *tokens);

/**
 * Makes options; all have their defaults.
 */
moeflux_status moeflux_options_new(moeflux_options **options, moeflux_error *error);

/**
 * Sets an option: both its name and its value are text, such as `"ctx"` and `"8192"`. The guide for C
 * lists names and values; a name that does not exist is refused with the list.
 */
moeflux_status moeflux_options_set(moeflux_options *options,
                                   const char *name,
                                   const char *value,
                                   moeflux_error *error);

/**
 * Frees options. Models that were opened with them are not affected.
 */
moeflux_status moeflux_options_free(moeflux_options *options);

/**
 * Makes a request; all of it is as the makers of the model recommend.
 */
moeflux_status moeflux_request_new(moeflux_request **request, moeflux_error *error);

/**
 * Sets a part of a request: both its name and its value are text, such as `"max_tokens"` and `"200"`;
 * values that are lists or objects are JSON. The guide for C lists names and values; a name that does
 * not exist is refused with the list.
 */
moeflux_status moeflux_request_set(moeflux_request *request,
                                   const char *name,
                                   const char *value,
                                   moeflux_error *error);

/**
 * Frees a request. Answers that were begun with it are not affected.
 */
moeflux_status moeflux_request_free(moeflux_request *request);

/**
 * Opens a model: a folder as published, a packed folder, or a GGUF file. Reads all dense weights before
 * it returns. `options` may be null, and so may `progress`, which learns bytes.
 */
moeflux_status moeflux_open(const char *path,
                            moeflux_options *options,
                            moeflux_progress progress,
                            void *user,
                            moeflux_model **model,
                            moeflux_error *error);

/**
 * What opening a model would take in memory, as a JSON object: whether it fits, row by row, and which
 * options would help. Reads headers, no weights.
 */
moeflux_status moeflux_plan(const char *path,
                            moeflux_options *options,
                            moeflux_text **plan,
                            moeflux_error *error);

/**
 * What a model is, as a JSON object: family, context, vocabulary, tokens that end a text, device, plan,
 * warnings.
 */
moeflux_status moeflux_model_info(moeflux_model *model, moeflux_text **info, moeflux_error *error);

/**
 * What a model did since it was opened, as a JSON object: hits and misses of the expert cache, bytes
 * read, seconds waited, tokens, steps.
 */
moeflux_status moeflux_model_stats(moeflux_model *model, moeflux_text **stats, moeflux_error *error);

/**
 * Frees the handle of a model. The model ends with its last answer and session; the call that ends it
 * waits for its thread.
 */
moeflux_status moeflux_model_free(moeflux_model *model);

/**
 * Turns text into tokens. `markup` is a `moeflux_markup`.
 */
moeflux_status moeflux_tokenize(moeflux_model *model,
                                const char *text,
                                size_t n_bytes,
                                int32_t markup,
                                moeflux_tokens **tokens,
                                moeflux_error *error);

/**
 * Turns tokens into text, control tokens included. Bytes that are not UTF-8 become U+FFFD, and ids
 * outside of the vocabulary nothing.
 */
moeflux_status moeflux_detokenize(moeflux_model *model,
                                  const uint32_t *tokens,
                                  size_t n_tokens,
                                  moeflux_text **text,
                                  moeflux_error *error);

/**
 * Whether a token ends a text.
 */
moeflux_status moeflux_token_ends(moeflux_model *model, uint32_t token, bool *ends, moeflux_error *error);

/**
 * The prompt that a conversation becomes by the model's chat template, as text and as tokens. `messages`
 * is a JSON array as in the OpenAI API; `request` says of tools and thinking, and may be null. Either
 * place may be null. Only the tokens keep what messages say apart from markup.
 */
moeflux_status moeflux_chat_prompt(moeflux_model *model,
                                   const char *messages,
                                   moeflux_request *request,
                                   moeflux_text **text,
                                   moeflux_tokens **tokens,
                                   moeflux_error *error);

/**
 * Begins the answer to a conversation. `messages` is a JSON array as in the OpenAI API; `request` may be
 * null. Returns when the prompt has its tokens. What the conversation has in common with earlier ones is
 * not evaluated again.
 */
moeflux_status moeflux_chat(moeflux_model *model,
                            const char *messages,
                            moeflux_request *request,
                            moeflux_answer **answer,
                            moeflux_error *error);

/**
 * Begins the continuation of a raw prompt, without a chat template. Control tokens that are written in
 * it count, so it must not hold text of others. `request` may be null.
 */
moeflux_status moeflux_generate(moeflux_model *model,
                                const char *prompt,
                                size_t n_bytes,
                                moeflux_request *request,
                                moeflux_answer **answer,
                                moeflux_error *error);

/**
 * Begins to fill the gap in a text, for models that were trained to. `infill` is a JSON object with
 * `prefix` and `suffix`, and, where other texts help, `others` with `name` and `text`. `request` may be
 * null.
 */
moeflux_status moeflux_fill(moeflux_model *model,
                            const char *infill,
                            moeflux_request *request,
                            moeflux_answer **answer,
                            moeflux_error *error);

/**
 * Waits for the next piece of an answer; `MOEFLUX_END` after the last one. `data` is UTF-8 with a NUL
 * after it that `n_bytes` does not count, valid until the next call with the answer; `n_bytes` may be
 * null.
 */
moeflux_status moeflux_answer_next(moeflux_answer *answer,
                                   moeflux_piece *kind,
                                   const char **data,
                                   size_t *n_bytes,
                                   moeflux_error *error);

/**
 * Runs an answer to its end. `on_piece` gets its pieces, `on_prompt` learns before the first one how many
 * tokens of the prompt are done; either may be null, and `user` is passed to both. Where one of them asks
 * to stop, the answer is cancelled and the call returns `MOEFLUX_ERROR_CANCELLED`.
 */
moeflux_status moeflux_answer_run(moeflux_answer *answer,
                                  moeflux_on_piece on_piece,
                                  moeflux_progress on_prompt,
                                  void *user,
                                  moeflux_error *error);

/**
 * Ends an answer soon. What has come until then can still be had, and then the end. Any thread may call
 * this at any time, also while another one waits for a piece.
 */
moeflux_status moeflux_answer_cancel(moeflux_answer *answer, moeflux_error *error);

/**
 * The message that was received so far, as a JSON object to be added to the messages of a conversation.
 */
moeflux_status moeflux_answer_message(moeflux_answer *answer, moeflux_text **message, moeflux_error *error);

/**
 * The figures of an answer that has ended, as a JSON object: why it ended, tokens, seconds.
 * `MOEFLUX_ERROR_ORDER` before its end.
 */
moeflux_status moeflux_answer_summary(moeflux_answer *answer, moeflux_text **summary, moeflux_error *error);

/**
 * The tokens that were received so far with their probabilities, as a JSON array; empty where the request
 * has no `top_logprobs`.
 */
moeflux_status moeflux_answer_logprobs(moeflux_answer *answer, moeflux_text **logprobs, moeflux_error *error);

/**
 * Frees an answer, and cancels it where it has not ended.
 */
moeflux_status moeflux_answer_free(moeflux_answer *answer);

/**
 * Makes an empty session. It shares the model's steps with answers and other sessions; memory is planned
 * for as many as the option `sessions` says, answers that run included.
 */
moeflux_status moeflux_session_new(moeflux_model *model, moeflux_session **session, moeflux_error *error);

/**
 * Evaluates tokens that follow those of the session. Where one is outside the vocabulary, or all do not
 * fit the context, none is evaluated. `progress` may be null; it learns tokens, and where it asks to stop
 * the session ends with the last token that it learned of.
 */
moeflux_status moeflux_session_evaluate(moeflux_session *session,
                                        const uint32_t *tokens,
                                        size_t n_tokens,
                                        moeflux_progress progress,
                                        void *user,
                                        moeflux_error *error);

/**
 * The logits of the token after the session's last one, one for every entry of the vocabulary. They are
 * the library's own memory, valid until the session is evaluated, cut, loaded or freed.
 * `MOEFLUX_ERROR_ORDER` where no evaluation came before.
 */
moeflux_status moeflux_session_logits(moeflux_session *session,
                                      const float **logits,
                                      size_t *n_logits,
                                      moeflux_error *error);

/**
 * Chooses the token that follows by the session's logits, as `request` says, which may be null. Random
 * numbers go on from call to call while what it says of choosing stays the same.
 */
moeflux_status moeflux_session_sample(moeflux_session *session,
                                      moeflux_request *request,
                                      uint32_t *token,
                                      moeflux_error *error);

/**
 * The number of tokens in a session.
 */
moeflux_status moeflux_session_position(moeflux_session *session, size_t *position, moeflux_error *error);

/**
 * The tokens of a session.
 */
moeflux_status moeflux_session_tokens(moeflux_session *session,
                                      moeflux_tokens **tokens,
                                      moeflux_error *error);

/**
 * Forgets the tokens from `position` on. Sessions of models with recurrent layers end at an earlier
 * checkpoint: `n_missing`, which may be null, is how many tokens before `position` are to be evaluated
 * again, and is 0 for other models.
 */
moeflux_status moeflux_session_truncate(moeflux_session *session,
                                        size_t position,
                                        size_t *n_missing,
                                        moeflux_error *error);

/**
 * Makes a checkpoint where the session stands, for `moeflux_session_restore`. Only models with recurrent
 * layers or windows need one.
 */
moeflux_status moeflux_session_checkpoint(moeflux_session *session, moeflux_error *error);

/**
 * Returns to a checkpoint, or to any position where the model needs none, and forgets the tokens after
 * it.
 */
moeflux_status moeflux_session_restore(moeflux_session *session, size_t position, moeflux_error *error);

/**
 * Writes a session to a file, whole or not at all, that only its owner may read.
 */
moeflux_status moeflux_session_save(moeflux_session *session, const char *path, moeflux_error *error);

/**
 * Replaces a session by one that `moeflux_session_save` has written, of the same model. Where the file
 * cannot be used, nothing changes.
 */
moeflux_status moeflux_session_load(moeflux_session *session, const char *path, moeflux_error *error);

/**
 * Frees a session.
 */
moeflux_status moeflux_session_free(moeflux_session *session);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MOEFLUX_H */
