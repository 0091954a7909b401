// Flow by a lattice Boltzmann method in two dimensions. Cause: the host reads the largest velocity after each of ten sweeps.
// ./g02_lattice with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int NX = 512, NY = 512, N = NX * NY, Q = 9, SWEEPS = 10;
__constant__ int ex[Q] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, ey[Q] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
__constant__ float wt[Q] = {4 / 9.f, 1 / 9.f, 1 / 9.f, 1 / 9.f, 1 / 9.f, 1 / 36.f, 1 / 36.f, 1 / 36.f, 1 / 36.f};

__global__ void start(float *f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int q = 0; q < Q; q++) f[q * N + i] = wt[q] * (1 + 0.02f * ((i / NX) % 64 < 32 ? ex[q] : -ex[q]));
}
__global__ void collide(float *f, float *speed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float r = 0, u = 0, v = 0;
    for (int q = 0; q < Q; q++) { float a = f[q * N + i]; r += a; u += ex[q] * a; v += ey[q] * a; }
    u /= r; v /= r;
    float s = u * u + v * v;
    for (int q = 0; q < Q; q++) {
        float c = ex[q] * u + ey[q] * v, e = wt[q] * r * (1 + 3 * c + 4.5f * c * c - 1.5f * s);
        f[q * N + i] += 1.2f * (e - f[q * N + i]);
    }
    speed[i] = s;
}
__global__ void stream(const float *f, float *g) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % NX, y = i / NX;
    for (int q = 0; q < Q; q++) g[q * N + ((y + ey[q] + NY) % NY) * NX + (x + ex[q] + NX) % NX] = f[q * N + i];
}
__global__ void walls(float *f) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x < NX) { f[2 * N + x] = f[4 * N + x]; f[4 * N + (NY - 1) * NX + x] = f[2 * N + (NY - 1) * NX + x]; }
}
__global__ void largest(const float *speed, float *out) {
    __shared__ float m[256];
    float a = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < N; i += gridDim.x * 256) a = fmaxf(a, speed[i]);
    m[threadIdx.x] = a;
    for (int k = 128; k; k /= 2) { __syncthreads(); if (threadIdx.x < k) m[threadIdx.x] = fmaxf(m[threadIdx.x], m[threadIdx.x + k]); }
    if (!threadIdx.x) atomicMax((int *)out, __float_as_int(m[0]));
}

float *f, *g, *speed, *top, seen;

void step(bool cause) {
    for (int k = 0; k < SWEEPS; k++) {
        collide<<<N / 256, 256>>>(f, speed);
        stream<<<N / 256, 256>>>(f, g);
        walls<<<NX / 256, 256>>>(g);
        std::swap(f, g);
        OK(cudaMemsetAsync(top, 0, sizeof(float)));
        largest<<<64, 256>>>(speed, top);
        if (cause || k == SWEEPS - 1) {
            OK(cudaMemcpy(&seen, top, sizeof(float), cudaMemcpyDeviceToHost));
            if (seen > 1) { fprintf(stderr, "unstable\n"); exit(2); }
        }
    }
    OK(cudaGetLastError());
}

int main(int argc, char **argv) {
    OK(cudaMalloc(&f, Q * N * sizeof(float))); OK(cudaMalloc(&g, Q * N * sizeof(float)));
    OK(cudaMalloc(&speed, N * sizeof(float))); OK(cudaMalloc(&top, sizeof(float)));
    start<<<N / 256, 256>>>(f);
    int steps = atoi(argv[2]);
    if (strcmp(argv[1], "turns")) {
        for (int i = 0; i < steps; i++) step(!strcmp(argv[1], "with"));
        OK(cudaDeviceSynchronize());
        return 0;
    }
    for (int i = 0; i < 2 * atoi(argv[3]); i++) step(i % 2);
    FILE *file = fopen(argv[5], "a");
    for (char *each = argv[4]; *each; each++) {
        for (int i = 0; i < 5; i++) step(*each == 'B');
        OK(cudaDeviceSynchronize());
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; i++) step(*each == 'B');
        OK(cudaDeviceSynchronize());
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
        fprintf(file, "[\"%c\", %f]\n", *each, ms);
    }
    fclose(file);
}
