// A flood over terrain, CUDA C++. Cause: the pool of cudaMallocAsync gives its memory back whenever the host waits, so each step maps it anew.
// ./n04_flood with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)
constexpr int N = 4096;
constexpr size_t TOTAL = (size_t)N * N;
__global__ void slope(const float *level, float *gx, float *gy) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    size_t i = (size_t)y * N + x;
    gx[i] = level[(size_t)y * N + min(N - 1, x + 1)] - level[(size_t)y * N + max(0, x - 1)];
    gy[i] = level[(size_t)min(N - 1, y + 1) * N + x] - level[(size_t)max(0, y - 1) * N + x];
}
__global__ void flux(const float *level, const float *gx, const float *gy, float *fx, float *fy) {
    size_t i = (size_t)blockIdx.y * N + blockIdx.x * blockDim.x + threadIdx.x;
    float h = fmaxf(level[i], 0.f), speed = powf(h, 0.667f);
    fx[i] = -speed * gx[i] * 0.01f;
    fy[i] = -speed * gy[i] * 0.01f;
}
__global__ void flow(float *level, const float *fx, const float *fy, float *most) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    size_t i = (size_t)y * N + x;
    float in = fx[(size_t)y * N + max(0, x - 1)] - fx[i] + fy[(size_t)max(0, y - 1) * N + x] - fy[i];
    level[i] += in;
    __shared__ float top[256];
    top[threadIdx.x] = fabsf(in);
    for (int k = 128; k; k >>= 1) { __syncthreads(); if (threadIdx.x < k) top[threadIdx.x] = fmaxf(top[threadIdx.x], top[threadIdx.x + k]); }
    if (!threadIdx.x) atomicMax((int *)most, __float_as_int(top[0]));
}
float *level, *most, change;
cudaStream_t work;
void step() {
    float *a[4];
    for (float *&each : a) OK(cudaMallocAsync(&each, TOTAL * 4, work));
    dim3 grid(N / 256, N);
    OK(cudaMemsetAsync(most, 0, 4, work));
    for (int k = 0; k < 4; k++) {
        slope<<<grid, 256, 0, work>>>(level, a[0], a[1]);
        flux<<<grid, 256, 0, work>>>(level, a[0], a[1], a[2], a[3]);
        flow<<<grid, 256, 0, work>>>(level, a[2], a[3], most);
    }
    for (float *each : a) OK(cudaFreeAsync(each, work));
    OK(cudaMemcpyAsync(&change, most, 4, cudaMemcpyDeviceToHost, work));
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
