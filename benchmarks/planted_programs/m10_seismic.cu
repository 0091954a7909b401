// Seismic waves in three dimensions, CUDA C++. Clean: a slice of each tenth step leaves by pinned memory on a stream of its own.
// ./m10_seismic with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)
constexpr int NX = 512, NY = 384, NZ = 384, R = 4;
constexpr size_t PLANE = (size_t)NX * NY, TOTAL = PLANE * NZ;
__constant__ float weight[R + 1];
__global__ void wave(const float *now, const float *speed, float *next) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < R || y < R || x >= NX - R || y >= NY - R) return;
    size_t i = (size_t)R * PLANE + (size_t)y * NX + x;
    float column[2 * R + 1];
    for (int k = 0; k < 2 * R; k++) column[k + 1] = now[i + (size_t)k * PLANE - (size_t)R * PLANE];
    for (int z = R; z < NZ - R; z++, i += PLANE) {
#pragma unroll
        for (int k = 0; k < 2 * R; k++) column[k] = column[k + 1];
        column[2 * R] = now[i + R * PLANE];
        float sum = 3 * weight[0] * column[R];
#pragma unroll
        for (int k = 1; k <= R; k++)
            sum += weight[k] * (column[R - k] + column[R + k] + now[i - k] + now[i + k] + now[i - k * NX] + now[i + k * NX]);
        next[i] = 2 * column[R] - next[i] + speed[i] * sum;
    }
}
__global__ void shake(float *now, float value) { now[PLANE * (NZ / 2) + (size_t)NX * (NY / 2) + NX / 2] += value; }
float *now, *next, *speed, *slice, *out;
cudaStream_t work, leave;
cudaEvent_t ready, left;
void step(int i) {
    wave<<<dim3(NX / 32, NY / 8), dim3(32, 8), 0, work>>>(now, speed, next);
    shake<<<1, 1, 0, work>>>(next, i < 40 ? 1.0f : 0.0f);
    std::swap(now, next);
    if (i % 10) return;
    OK(cudaStreamWaitEvent(work, left));
    OK(cudaMemcpyAsync(slice, now + PLANE * (NZ / 2), PLANE * 4, cudaMemcpyDeviceToDevice, work));
    OK(cudaEventRecord(ready, work));
    OK(cudaStreamWaitEvent(leave, ready));
    OK(cudaMemcpyAsync(out, slice, PLANE * 4, cudaMemcpyDeviceToHost, leave));
    OK(cudaEventRecord(left, leave));
}
int main(int argc, char **argv) {
    for (float **f : {&now, &next, &speed}) { OK(cudaMalloc(f, TOTAL * 4)); OK(cudaMemset(*f, 0, TOTAL * 4)); }
    OK(cudaMalloc(&slice, PLANE * 4));
    OK(cudaMallocHost(&out, PLANE * 4));
    OK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&leave, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&left, cudaEventDisableTiming));
    const float given[R + 1] = {-2.847222f, 1.6f, -0.2f, 0.025397f, -0.001786f};
    OK(cudaMemcpyToSymbol(weight, given, sizeof given));
    float *host = (float *)malloc(TOTAL * 4);
    for (size_t i = 0; i < TOTAL; i++) host[i] = 0.05f + 0.05f * (float)(i / PLANE) / NZ;
    OK(cudaMemcpy(speed, host, TOTAL * 4, cudaMemcpyHostToDevice));
    int steps = atoi(argv[2]);
    if (strcmp(argv[1], "turns")) {
        for (int i = 0; i < steps; i++) step(i);
        OK(cudaDeviceSynchronize());
        return 0;
    }
    for (int i = 0; i < 2 * atoi(argv[3]); i++) step(i);
    FILE *file = fopen(argv[5], "a");
    for (char *each = argv[4]; *each; each++) {
        OK(cudaDeviceSynchronize());
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; i++) step(i);
        OK(cudaDeviceSynchronize());
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
        fprintf(file, "[\"%c\", %f]\n", *each, ms);
    }
    fclose(file);
}
