// A kernel as the runner knows it. What `write_cases` of moeflux-wgpu's tests writes includes this.
#pragma once
#include <metal_stdlib>

namespace msl {
constexpr int MOST_BUFFERS = 31;

struct Kernel {
    const char* name;
    // Runs one thread on `buffers`.
    void (*run)();
    unsigned threads[3];
    // Slots of the buffers whose sizes it is told, in that order; ends with 0, the slot of parameters.
    unsigned sized[MOST_BUFFERS];
    // Memory of the workgroup; ends with nothing.
    struct Shared {
        void* at;
        unsigned long bytes;
    } shared[32];
};

// By slot.
extern void* buffers[MOST_BUFFERS];

struct Listed {
    explicit Listed(const Kernel& kernel);
};
}  // namespace msl
