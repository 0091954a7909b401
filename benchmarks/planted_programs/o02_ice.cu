// Ice on a lake, CUDA C++. Cause: the pool of cudaMallocAsync gives its memory back in each step.
// ./o02_ice with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)
constexpr int N = 6144;
constexpr size_t TOTAL = (size_t)N * N;
__global__ void relax(const float *from, const float *source, float *to) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    size_t i = (size_t)y * N + x, row = (size_t)y * N;
    float around = from[row + max(0, x - 1)] + from[row + min(N - 1, x + 1)] + from[(size_t)max(0, y - 1) * N + x] + from[(size_t)min(N - 1, y + 1) * N + x];
    to[i] = 0.25f * around + 0.01f * source[i];
}
__global__ void grow(float *level, const float *heat) {
    size_t i = (size_t)blockIdx.y * N + blockIdx.x * blockDim.x + threadIdx.x;
    level[i] += 1e-3f * (1.0f - level[i]) * heat[i];
}
float *level, *most;
cudaStream_t work;
void step() {
    dim3 grid(N / 256, N);
    for (int part = 0; part < 3; part++) {
        float *one, *two;
        OK(cudaMallocAsync(&one, TOTAL * 4, work));
        OK(cudaMallocAsync(&two, TOTAL * 4, work));
        relax<<<grid, 256, 0, work>>>(level, level, one);
        for (int k = 0; k < 8; k++) { relax<<<grid, 256, 0, work>>>(one, level, two); relax<<<grid, 256, 0, work>>>(two, level, one); }
        grow<<<grid, 256, 0, work>>>(level, one);
        OK(cudaFreeAsync(one, work));
        OK(cudaFreeAsync(two, work));
    }
    OK(cudaStreamSynchronize(work));
}
void give_back(bool always) {
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    uint64_t threshold = always ? 0 : UINT64_MAX;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
}
int main(int argc, char **argv) {
    OK(cudaMalloc(&level, TOTAL * 4));
    OK(cudaMalloc(&most, 4));
    OK(cudaStreamCreate(&work));
    float *host = (float *)malloc(TOTAL * 4);
    for (size_t i = 0; i < TOTAL; i++) host[i] = rand() / (float)RAND_MAX;
    OK(cudaMemcpy(level, host, TOTAL * 4, cudaMemcpyHostToDevice));
    int steps = atoi(argv[2]);
    if (strcmp(argv[1], "turns")) {
        give_back(!strcmp(argv[1], "with"));
        for (int i = 0; i < steps; i++) step();
        OK(cudaDeviceSynchronize());
        return 0;
    }
    for (int i = 0; i < 2 * atoi(argv[3]); i++) step();
    FILE *file = fopen(argv[5], "a");
    for (char *each = argv[4]; *each; each++) {
        give_back(*each == 'B');
        for (int i = 0; i < 3; i++) step();
        OK(cudaDeviceSynchronize());
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; i++) step();
        OK(cudaDeviceSynchronize());
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
        fprintf(file, "[\"%c\", %f]\n", *each, ms);
    }
    fclose(file);
}
