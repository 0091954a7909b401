// Flames on eight patches of a grid, CUDA C++. Cause: a kernel without a stream argument, in the legacy default stream.
//
// Each patch has a stream of its own, but the kernel that marks where to refine is launched without one. The legacy
// default stream waits for all other streams and they wait for it, so that patches run one after another, each too
// small to fill the GPU. Mended by the patch's stream. Reported:
// https://github.com/arrayfire/arrayfire/issues/926,
// https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html and
// https://developer.nvidia.com/blog/gpu-pro-tip-cuda-7-streams-simplify-concurrency/.
// Build: nvcc -O3 -arch=sm_90 -o p05_flames p05_flames.cu; run: ./p05_flames [--fixed]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int PATCHES = 8, SIDE = 160, CELLS = SIDE * SIDE, STAGES = 3, BLOCK = 25;

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error_ = (call);                                                      \
        if (error_ != cudaSuccess) {                                                      \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));          \
            std::exit(1);                                                                 \
        }                                                                                 \
    } while (0)

__global__ void burn(const double *heat, const double *fuel, double *heat_out, double *fuel_out, double dt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= CELLS) return;
    int x = i % SIDE, y = i / SIDE;
    auto at = [&](int a, int b) { return heat[min(max(b, 0), SIDE - 1) * SIDE + min(max(a, 0), SIDE - 1)]; };
    double t = heat[i], f = fuel[i];
    t += 0.1 * (at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1) - 4 * t);
    for (int k = 0; k < 900; ++k) {  // stiff chemistry, in small steps
        double rate = 40.0 * f * exp(-4.0 / (t + 0.1));
        f = fmax(f - dt / 900 * rate, 0.0);
        t += dt / 900 * (rate - 0.5 * t);
    }
    heat_out[i] = t;
    fuel_out[i] = f + 1e-3 * (1.0 - f);
}

__global__ void mark(const double *heat, int *refine) {  // a row is a block: its steep places
    int row = blockIdx.x, steep = 0;
    for (int x = 1 + threadIdx.x; x < SIDE; x += blockDim.x) steep += fabs(heat[row * SIDE + x] - heat[row * SIDE + x - 1]) > 0.2;
    steep = __reduce_add_sync(~0u, steep);
    if (threadIdx.x == 0) refine[row] = steep;
}

__global__ void exchange(double *const *heat) {  // the last column of a patch is the first of the next one
    int p = blockIdx.x, row = threadIdx.x;
    heat[(p + 1) % PATCHES][row * SIDE] = heat[p][row * SIDE + SIDE - 1];
}

int main(int argc, char **argv) {
    bool fixed = argc > 1 && !std::strcmp(argv[1], "--fixed");
    const int steps = 300;
    double *heat[2][PATCHES], *fuel[2][PATCHES], **table[2];
    int *refine[PATCHES];
    cudaStream_t stream[PATCHES], joint;
    cudaEvent_t done[PATCHES], joined;
    std::vector<double> start(CELLS), full(CELLS, 1.0);
    for (int i = 0; i < CELLS; ++i) start[i] = i % SIDE < 12 ? 1.5 : 0.1;
    for (int p = 0; p < PATCHES; ++p) {
        for (int k = 0; k < 2; ++k) {
            CHECK(cudaMalloc(&heat[k][p], CELLS * sizeof(double)));
            CHECK(cudaMalloc(&fuel[k][p], CELLS * sizeof(double)));
            CHECK(cudaMemcpy(heat[k][p], start.data(), CELLS * sizeof(double), cudaMemcpyHostToDevice));
            CHECK(cudaMemcpy(fuel[k][p], full.data(), CELLS * sizeof(double), cudaMemcpyHostToDevice));
        }
        CHECK(cudaMalloc(&refine[p], SIDE * sizeof(int)));
        CHECK(cudaStreamCreate(&stream[p]));
        CHECK(cudaEventCreateWithFlags(&done[p], cudaEventDisableTiming));
    }
    CHECK(cudaStreamCreate(&joint));
    CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    for (int k = 0; k < 2; ++k) {
        CHECK(cudaMalloc(&table[k], sizeof heat[k]));
        CHECK(cudaMemcpy(table[k], heat[k], sizeof heat[k], cudaMemcpyHostToDevice));
    }
    int now = 0;
    auto step = [&] {
        for (int stage = 0; stage < STAGES; ++stage, now ^= 1) {
            for (int p = 0; p < PATCHES; ++p) {
                CHECK(cudaStreamWaitEvent(stream[p], joined));
                burn<<<(CELLS + 255) / 256, 256, 0, stream[p]>>>(heat[now][p], fuel[now][p], heat[now ^ 1][p],
                                                                 fuel[now ^ 1][p], 1e-3);
                if (fixed)
                    mark<<<SIDE, 32, 0, stream[p]>>>(heat[now ^ 1][p], refine[p]);
                else
                    mark<<<SIDE, 32>>>(heat[now ^ 1][p], refine[p]);
                CHECK(cudaEventRecord(done[p], stream[p]));
            }
            for (int p = 0; p < PATCHES; ++p) CHECK(cudaStreamWaitEvent(joint, done[p]));
            exchange<<<PATCHES, SIDE, 0, joint>>>(table[now ^ 1]);
            CHECK(cudaEventRecord(joined, joint));
        }
    };
    for (int i = 0; i < 20; ++i) step();
    CHECK(cudaDeviceSynchronize());
    std::vector<double> times;
    for (int b = 0; b < steps / BLOCK; ++b) {
        auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < BLOCK; ++i) step();
        CHECK(cudaDeviceSynchronize());
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
        times.push_back(took.count() / BLOCK);
    }
    CHECK(cudaMemcpy(start.data(), heat[now][0], CELLS * sizeof(double), cudaMemcpyDeviceToHost));
    std::sort(times.begin(), times.end());
    std::printf("{\"median_ms\": %.4f, \"fixed\": %s, \"heat\": %.6f}\n", (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2,
                fixed ? "true" : "false", start[CELLS / 2]);
}
