// Heat of a furnace with probes, CUDA C++. Cause: managed memory that the host reads in each step moves to and fro.
//
// The field is cudaMallocManaged. After each step the host reads probes all over it and sets the burners anew, so that pages
// migrate to the host and come back by page faults in the first kernel of the next step. Mended by memory of the GPU, a kernel
// that gathers the probes and a small copy from and to pinned memory. Reported: https://github.com/NVIDIA/cudf/issues/13821,
// https://github.com/kokkos/kokkos/issues/2915, https://developer.nvidia.com/blog/maximizing-unified-memory-performance-cuda/.
// Build: nvcc -O3 -arch=sm_90 -o q02_plume q02_plume.cu; run: ./q02_plume [--fixed]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int X = 384, Y = 384, Z = 256, CELLS = X * Y * Z, SWEEPS = 30, BLOCK = 25, PROBES = 256, BURNERS = 64;

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error_ = (call);                                                      \
        if (error_ != cudaSuccess) {                                                      \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));          \
            std::exit(1);                                                                 \
        }                                                                                 \
    } while (0)

__global__ void spread(const float *heat, float *next) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z, i = (z * Y + y) * X + x;
    float own = heat[i], sum = -6 * own;
    sum += heat[x > 0 ? i - 1 : i] + heat[x < X - 1 ? i + 1 : i];
    sum += heat[y > 0 ? i - X : i] + heat[y < Y - 1 ? i + X : i];
    sum += heat[z > 0 ? i - X * Y : i] + heat[z < Z - 1 ? i + X * Y : i];
    next[i] = (own + 0.12f * sum) * 0.9999f;
}

__global__ void gather(const float *heat, const int *places, float *seen) {
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p < PROBES) seen[p] = heat[places[p]];
}

__global__ void burn(float *heat, const int *places, const float *power) {
    int b = threadIdx.x;
    if (b < BURNERS) heat[places[b]] += power[b];
}

static float control(const float *seen, int burner) {  // more power where it is cold
    float mean = 0;
    for (int k = 0; k < PROBES / BURNERS; ++k) mean += seen[burner * (PROBES / BURNERS) + k];
    return std::min(std::max(1.0f - mean, 0.0f), 1.0f);
}

int main(int argc, char **argv) {
    bool fixed = argc > 1 && !std::strcmp(argv[1], "--fixed");
    const int steps = 300;
    float *heat[2], *seen, *power, *seen_host, *power_host;
    int *places, *burners, host_places[PROBES], host_burners[BURNERS];
    for (int p = 0; p < PROBES; ++p) host_places[p] = int((p + 0.5) / PROBES * CELLS) / X * X + p * 37 % X;
    for (int b = 0; b < BURNERS; ++b) host_burners[b] = ((Z / 2 - BURNERS / 2 + b) * Y + 100 + b * 29 % 180) * X + 100 + b * 53 % 180;
    for (auto &each : heat) {
        if (fixed)
            CHECK(cudaMalloc(&each, CELLS * sizeof(float)));
        else
            CHECK(cudaMallocManaged(&each, CELLS * sizeof(float)));
        CHECK(cudaMemset(each, 0, CELLS * sizeof(float)));
    }
    CHECK(cudaMalloc(&seen, PROBES * sizeof(float)));
    CHECK(cudaMalloc(&power, BURNERS * sizeof(float)));
    CHECK(cudaMallocHost(&seen_host, PROBES * sizeof(float)));
    CHECK(cudaMallocHost(&power_host, BURNERS * sizeof(float)));
    CHECK(cudaMalloc(&places, sizeof host_places));
    CHECK(cudaMalloc(&burners, sizeof host_burners));
    CHECK(cudaMemcpy(places, host_places, sizeof host_places, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(burners, host_burners, sizeof host_burners, cudaMemcpyHostToDevice));
    dim3 threads(64, 4), blocks(X / 64, Y / 4, Z);
    float mean = 0;
    auto step = [&] {
        for (int sweep = 0; sweep < SWEEPS; ++sweep) {
            spread<<<blocks, threads>>>(heat[0], heat[1]);
            std::swap(heat[0], heat[1]);
        }
        if (fixed) {
            gather<<<1, PROBES>>>(heat[0], places, seen);
            CHECK(cudaMemcpyAsync(seen_host, seen, PROBES * sizeof(float), cudaMemcpyDeviceToHost));
            CHECK(cudaStreamSynchronize(0));
            for (int b = 0; b < BURNERS; ++b) power_host[b] = control(seen_host, b);
            CHECK(cudaMemcpyAsync(power, power_host, BURNERS * sizeof(float), cudaMemcpyHostToDevice));
            burn<<<1, BURNERS>>>(heat[0], burners, power);
        } else {
            CHECK(cudaDeviceSynchronize());
            for (int p = 0; p < PROBES; ++p) seen_host[p] = heat[0][host_places[p]];
            for (int b = 0; b < BURNERS; ++b) heat[0][host_burners[b]] += control(seen_host, b);
        }
        mean = 0;
        for (int p = 0; p < PROBES; ++p) mean += seen_host[p] / PROBES;
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
    std::sort(times.begin(), times.end());
    std::printf("{\"median_ms\": %.4f, \"fixed\": %s, \"mean\": %.6f}\n", (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2,
                fixed ? "true" : "false", mean);
}
