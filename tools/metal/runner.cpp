// Runs kernels on captured dispatches, each thread of a workgroup a fibre, and compares what they write with what a
// driver wrote.
//
//     runner KERNEL CASE LANES CONDITION...
//
// prints a line for each condition: its name, `equal`, `within` (tolerance) or `FAILED`, and details. KERNEL is the name
// of one that was linked, of a text for subgroups of LANES lanes. Fibres change at barriers and where lanes of
// a simdgroup exchange values. FAILED are also: threads of which some are at a barrier or exchange that others do not
// reach, values taken from a lane that is not there, writes behind a buffer. Memory of a workgroup is NaN at first.
//
// plain    fma rounds twice, threads in order: as Mesa's software Vulkan; against the driver's result
// fused    fma rounds once; against the driver's result
// flush    the same, denormals are zero; against the driver's result
// order    threads, simdgroups and workgroups in shuffled order, twice; bits of `plain`
// wide     on simdgroups of 32 lanes; bits of `plain`
// lanes=KERNEL:LANES    the same kernel's text for other lanes; bits of `plain`
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <string>
#include <vector>

#include "runner.h"

// Metal's keywords are names here.
#undef kernel
#undef thread

namespace msl {
void* buffers[MOST_BUFFERS];
bool is_fused;

namespace {
// Of a kernel's stack.
constexpr size_t STACK = 256 << 10;
constexpr unsigned MOST_THREADS = 1024, MOST_LANES = 64, MOST_BYTES = 16;
// Bytes behind each buffer that must stay what they are.
constexpr size_t GUARD = 4096;

// How a dispatch is run.
struct Machine {
    unsigned lanes;
    // 0: in order.
    uint64_t seed;
};

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Fibre {
    State state;
    Position position;
    jmp_buf at;
    bool has_begun;
    // What it exchanges.
    alignas(16) unsigned char value[MOST_BYTES];
    int bytes;
    unsigned lane;
    Exchange how;
    Fold fold;
};

Fibre fibres[MOST_THREADS];
ucontext_t contexts[MOST_THREADS];
jmp_buf scheduler;
unsigned current;
const Kernel* running;
// What is wrong, once each.
unsigned long n_apart, n_absent;

uint64_t random_state;
unsigned below(unsigned n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % n);
}
void shuffle(std::vector<unsigned>& all) {
    for (unsigned i = (unsigned)all.size(); i > 1; i--) std::swap(all[i - 1], all[below(i)]);
}

void leave(State state) {
    Fibre& fibre = fibres[current];
    fibre.state = state;
    if (!_setjmp(fibre.at)) _longjmp(scheduler, 1);
}

// A fibre runs its thread of one workgroup after another.
void fibre_main() {
    for (;;) {
        running->run();
        leave(DONE);
    }
}

void resume(unsigned thread) {
    current = thread;
    Fibre& fibre = fibres[thread];
    if (_setjmp(scheduler)) return;
    if (fibre.has_begun) _longjmp(fibre.at, 1);
    fibre.has_begun = true;
    static char* stacks = (char*)mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ucontext_t& context = contexts[thread];
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + STACK * thread;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, fibre_main, 0);
    setcontext(&context);
}

// Lanes of a simdgroup give each other their values.
void exchange_all(unsigned first, unsigned n) {
    unsigned char values[MOST_LANES][MOST_BYTES];
    const Fibre* any = nullptr;
    bool is_here[MOST_LANES];
    for (unsigned i = 0; i < n; i++) {
        Fibre& fibre = fibres[first + i];
        is_here[i] = fibre.state == AT_EXCHANGE;
        if (!is_here[i]) n_apart++;
        else if (!any) any = &fibre;
        else if (fibre.bytes != any->bytes || fibre.how != any->how || fibre.fold != any->fold) n_apart++;
        memcpy(values[i], fibre.value, MOST_BYTES);
    }
    alignas(16) unsigned char folded[MOST_BYTES];
    if (any->how == FOLD) {
        memcpy(folded, any->value, MOST_BYTES);
        for (unsigned i = 0; i < n; i++)
            if (is_here[i]) any->fold(folded, values[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        if (!is_here[i]) continue;
        Fibre& fibre = fibres[first + i];
        unsigned from = fibre.how == FROM_XOR ? i ^ fibre.lane : fibre.lane;
        if (fibre.how == FOLD) memcpy(fibre.value, folded, MOST_BYTES);
        else if (from < n && is_here[from]) memcpy(fibre.value, values[from], MOST_BYTES);
        else n_absent++, memset(fibre.value, 0xff, MOST_BYTES);
        fibre.state = READY;
    }
}

std::vector<unsigned> numbers(unsigned n, const Machine& machine) {
    std::vector<unsigned> all(n);
    for (unsigned i = 0; i < n; i++) all[i] = i;
    if (machine.seed) shuffle(all);
    return all;
}

// Until all its threads are at a barrier or done.
void run_simdgroup(unsigned first, unsigned n, const Machine& machine) {
    for (;;) {
        for (unsigned i : numbers(n, machine))
            if (fibres[first + i].state == READY) resume(first + i);
        bool exchanges = false;
        for (unsigned i = first; i < first + n; i++) exchanges |= fibres[i].state == AT_EXCHANGE;
        if (!exchanges) return;
        exchange_all(first, n);
    }
}

void run_workgroup(const Kernel& kernel, metal::uint3 id, metal::uint3 grid, const Machine& machine) {
    unsigned n = kernel.threads[0] * kernel.threads[1] * kernel.threads[2];
    for (const Kernel::Shared* shared = kernel.shared; shared->at; shared++) memset(shared->at, 0xff, shared->bytes);
    for (unsigned i = 0; i < n; i++) {
        unsigned x = kernel.threads[0], xy = x * kernel.threads[1];
        fibres[i].state = READY;
        fibres[i].position = {id, grid, {i % x, i % xy / x, i / xy}, i, i % machine.lanes, i / machine.lanes, machine.lanes};
    }
    for (;;) {
        for (unsigned group : numbers((n + machine.lanes - 1) / machine.lanes, machine)) {
            unsigned first = group * machine.lanes;
            run_simdgroup(first, n - first < machine.lanes ? n - first : machine.lanes, machine);
        }
        unsigned n_waiting = 0;
        for (unsigned i = 0; i < n; i++) n_waiting += fibres[i].state == AT_BARRIER;
        if (n_waiting == 0) return;
        if (n_waiting < n) n_apart++;
        for (unsigned i = 0; i < n; i++)
            if (fibres[i].state == AT_BARRIER) fibres[i].state = READY;
    }
}

typedef std::vector<unsigned char> Bytes;

// How the elements of a buffer are compared: singles, halves, or words that may be anything.
enum Kind { SINGLES, HALVES, WORDS };

struct Buffer {
    Kind kind;
    bool is_written;
    Bytes before, after;
};

struct Case {
    // Whether inputs are numbers.
    bool is_usual;
    unsigned grid[3];
    Bytes params;
    std::vector<Buffer> buffers;
};

// Little-endian words of 32 bits: a mark, the grid, bytes of parameters, the number of buffers; of each its kind, whether
// it is written, its bytes, how many of them there are before and after (the others are zero); then the bytes of all:
// parameters, each buffer before and after.
Case read_case(const char* path) {
    FILE* file = fopen(path, "rb");
    if (!file) perror(path), exit(2);
    auto take = [&](void* to, size_t bytes) {
        if (bytes && fread(to, bytes, 1, file) != 1) fprintf(stderr, "%s is too short\n", path), exit(2);
    };
    auto word = [&] { uint32_t it; take(&it, 4); return it; };
    if (word() != 0x314c534d) fprintf(stderr, "%s is no case\n", path), exit(2);
    Case it;
    it.is_usual = strstr(path, "-usual.");
    for (unsigned& n : it.grid) n = word();
    it.params.resize(word());
    it.buffers.resize(word());
    std::vector<unsigned> n_before, n_after;
    for (Buffer& buffer : it.buffers) {
        buffer.kind = (Kind)word();
        buffer.is_written = word();
        buffer.before.resize(word());
        buffer.after.resize(buffer.before.size());
        n_before.push_back(word());
        n_after.push_back(word());
    }
    take(it.params.data(), it.params.size());
    for (size_t i = 0; i < it.buffers.size(); i++) {
        Buffer& buffer = it.buffers[i];
        take(buffer.before.data(), n_before[i]);
        take(buffer.after.data(), n_after[i]);
        if (!buffer.is_written) buffer.after = buffer.before;
    }
    fclose(file);
    return it;
}

struct Result {
    std::vector<Bytes> buffers;
    std::string faults;
};

Result run(const Kernel& kernel, const Case& it, const Machine& machine) {
    running = &kernel;
    n_apart = n_absent = 0;
    random_state = machine.seed;
    Result result;
    Bytes params = it.params;
    buffers[0] = params.data();
    uint32_t sizes[MOST_BUFFERS] = {};
    for (const Buffer& buffer : it.buffers) {
        result.buffers.push_back(buffer.before);
        result.buffers.back().resize(buffer.before.size() + GUARD, 0xa5);
    }
    for (size_t i = 0; i < it.buffers.size(); i++) buffers[1 + i] = result.buffers[i].data();
    for (unsigned i = 0; kernel.sized[i]; i++) sizes[i] = (uint32_t)it.buffers[kernel.sized[i] - 1].before.size();
    buffers[1 + it.buffers.size()] = sizes;
    metal::uint3 grid = {it.grid[0], it.grid[1], it.grid[2]};
    for (unsigned i : numbers(grid.x * grid.y * grid.z, machine)) {
        metal::uint3 id = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
        run_workgroup(kernel, id, grid, machine);
    }
    for (size_t i = 0; i < it.buffers.size(); i++) {
        Bytes& bytes = result.buffers[i];
        for (size_t at = bytes.size() - GUARD; at < bytes.size(); at++)
            if (bytes[at] != 0xa5) { result.faults += " wrote behind a buffer,"; break; }
        bytes.resize(bytes.size() - GUARD);
    }
    if (n_apart) result.faults += " threads were not at the same place,";
    if (n_absent) result.faults += " values of absent lanes,";
    return result;
}

template <class T>
T part(const Bytes& bytes, size_t at) {
    T it;
    memcpy(&it, &bytes[at], sizeof it);
    return it;
}

bool is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }
// Of a size that results have: small integers and packed bytes mostly are not.
bool is_usual(float x) { return fabsf(x) > 1e-10f && fabsf(x) < 1e10f; }

// Shares of the largest element, and the absolute part, as in the conformance tests; units of the last place of a half.
constexpr float RELATIVE = 1e-5f, ABSOLUTE = 1e-5f;

// Sums of codes, two of which were rounded the other way.
bool are_close_sums(float a, float b) {
    return a == rintf(a) && b == rintf(b) && fabsf(a) > 64.0f && fabsf(a - b) <= 2.0f;
}

bool are_close_singles(uint32_t want, uint32_t got, float largest) {
    float a = __builtin_bit_cast(float, want), b = __builtin_bit_cast(float, got);
    if (want == got || (is_nan(want) && is_nan(got)) || are_close_sums(a, b)) return true;
    return fabsf(a - b) <= ABSOLUTE + RELATIVE * largest;
}

// Floats of 16 bits, of either kind, that are next to each other.
bool are_close_halves(uint32_t want, uint32_t got) {
    for (int shift : {0, 16}) {
        int a = want >> shift & 0xffff, b = got >> shift & 0xffff;
        if (abs(a - b) > 1 && ((a | b) & 0x7fff) > 1) return false;
    }
    return true;
}

bool are_close_bytes(uint32_t want, uint32_t got) {
    for (int shift : {0, 8, 16, 24})
        if (abs((int)(int8_t)(want >> shift) - (int)(int8_t)(got >> shift)) > 1) return false;
    return true;
}

// Words that may be singles, two halves or four rounded integers; counts and numbers of experts are below 2^16, and have to
// be equal.
bool are_close_words(uint32_t want, uint32_t got) {
    float a = __builtin_bit_cast(float, want), b = __builtin_bit_cast(float, got);
    if (is_nan(want) && is_nan(got)) return true;
    if (want < 0x10000 || got < 0x10000) return false;
    if (is_usual(a) && is_usual(b) && (are_close_sums(a, b) || fabsf(a - b) <= 2.0f * RELATIVE * fabsf(a))) return true;
    return are_close_halves(want, got) || are_close_bytes(want, got);
}

struct Comparison {
    unsigned long n_written = 0, n_differ = 0, n_beyond = 0;
    uint32_t want = 0, got = 0;
};

// Where inputs are no numbers: infinite or NaN, whichever; and what a driver leaves out, as 0 times an input, may be
// NaN. A NaN must not become a number.
bool are_both_odd(uint32_t want, uint32_t got) {
    return is_nan(got) || !(isfinite(__builtin_bit_cast(float, want)) || isfinite(__builtin_bit_cast(float, got)));
}

void compare(const Buffer& buffer, const Bytes& got, bool is_usual, Comparison& all) {
    float largest = 0.0f;
    for (size_t at = 0; at + 4 <= got.size(); at += 4) {
        float x = part<float>(buffer.after, at);
        if (part<uint32_t>(buffer.before, at) != part<uint32_t>(buffer.after, at) && isfinite(x))
            largest = fmaxf(largest, fabsf(x));
    }
    for (size_t at = 0; at + 4 <= got.size(); at += 4) {
        uint32_t before = part<uint32_t>(buffer.before, at), a = part<uint32_t>(buffer.after, at), b = part<uint32_t>(got, at);
        if (before == a && before == b) continue;
        all.n_written++;
        if (a == b || (buffer.kind != HALVES && is_nan(a) && is_nan(b))) continue;
        all.n_differ++;
        bool is_close = buffer.kind == SINGLES ? are_close_singles(a, b, largest)
                        : buffer.kind == HALVES ? are_close_halves(a, b)
                                                : are_close_words(a, b);
        is_close |= !is_usual && buffer.kind != HALVES && are_both_odd(a, b);
        if (!is_close && all.n_beyond++ == 0) all.want = a, all.got = b;
    }
}

void print(const char* condition, const char* outcome, const Comparison& of, const std::string& faults) {
    printf("%s %s %lu of %lu words differ,%s", condition, outcome, of.n_differ, of.n_written, faults.c_str());
    if (of.n_beyond)
        printf(" %lu too much: %08x (%g) for %08x (%g)", of.n_beyond, of.got, (double)__builtin_bit_cast(float, of.got),
               of.want, (double)__builtin_bit_cast(float, of.want));
    printf("\n");
}

// Against what the driver wrote.
void report(const char* condition, const Case& it, const Result& result) {
    Comparison all;
    for (size_t i = 0; i < it.buffers.size(); i++) compare(it.buffers[i], result.buffers[i], it.is_usual, all);
    bool is_wrong = all.n_beyond || !result.faults.empty();
    print(condition, is_wrong ? "FAILED" : all.n_differ ? "within" : "equal", all, result.faults);
}

// Against another run, bit for bit.
void report_same(const char* condition, const Result& want, const Result& got) {
    Comparison all;
    for (size_t i = 0; i < want.buffers.size(); i++)
        for (size_t at = 0; at + 4 <= want.buffers[i].size(); at += 4) {
            uint32_t a = part<uint32_t>(want.buffers[i], at), b = part<uint32_t>(got.buffers[i], at);
            all.n_written++;
            if (a != b && all.n_beyond++ == 0) all.want = a, all.got = b;
        }
    all.n_differ = all.n_beyond;
    print(condition, all.n_beyond || !got.faults.empty() ? "FAILED" : "equal", all, got.faults);
}

// Denormals are zero, as operands and as results.
void set_flushing(bool flushes) {
#ifdef __SSE__
    _mm_setcsr((_mm_getcsr() & ~0x8040u) | (flushes ? 0x8040 : 0));
#else
    if (flushes) fprintf(stderr, "denormals are not flushed on this processor\n"), exit(2);
#endif
}

const Kernel** find(const char* name, const Kernel* added) {
    static std::vector<const Kernel*> all;
    if (added) all.push_back(added);
    for (const Kernel*& kernel : all)
        if (!strcmp(kernel->name, name)) return &kernel;
    return nullptr;
}

void run_condition(const char* name, const Kernel& kernel, const Case& it, unsigned lanes, const Result& plain) {
    auto is = [&](const char* other) { return !strcmp(name, other); };
    Machine in_order = {lanes, 0};
    is_fused = is("fused") || is("flush") || is("fast");
    set_flushing(is("flush") || is("fast"));
    if (const char* other = strncmp(name, "lanes=", 6) ? nullptr : name + 6) {
        const char* colon = strchr(other, ':');
        const Kernel** found = colon ? find(std::string(other, colon).c_str(), nullptr) : nullptr;
        if (!found) fprintf(stderr, "no kernel %s\n", other), exit(2);
        report_same("lanes", plain, run(**found, it, {(unsigned)atoi(colon + 1), 0}));
    } else if (is("order")) {
        for (uint64_t seed : {1, 2}) report_same(name, plain, run(kernel, it, {lanes, seed}));
    } else if (is("wide")) {
        report_same(name, plain, run(kernel, it, {32, 0}));
    } else if (is("plain")) {
        report(name, it, plain);
    } else {
        report(name, it, run(kernel, it, in_order));
    }
}
}  // namespace

Listed::Listed(const Kernel& kernel) { find(kernel.name, &kernel); }

const Position& position() { return fibres[current].position; }
void barrier() { leave(AT_BARRIER); }
void exchange(void* value, int bytes, unsigned lane, Exchange how, Fold fold) {
    unsigned mine = current;
    Fibre& fibre = fibres[mine];
    memcpy(fibre.value, value, bytes);
    fibre.bytes = bytes, fibre.lane = lane, fibre.how = how, fibre.fold = fold;
    leave(AT_EXCHANGE);
    memcpy(value, fibres[mine].value, bytes);
}

int run_all(int argc, char** argv) {
    if (argc < 5) return fprintf(stderr, "runner KERNEL CASE LANES CONDITION...\n"), 2;
    const Kernel** kernel = find(argv[1], nullptr);
    if (!kernel) return fprintf(stderr, "no kernel %s\n", argv[1]), 2;
    Case it = read_case(argv[2]);
    unsigned lanes = atoi(argv[3]);
    set_flushing(false);
    Result plain = run(**kernel, it, {lanes, 0});
    for (int i = 4; i < argc; i++) run_condition(argv[i], **kernel, it, lanes, plain);
    return 0;
}
}  // namespace msl

int main(int argc, char** argv) { return msl::run_all(argc, argv); }
