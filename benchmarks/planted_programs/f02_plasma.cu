// Particles in a cell, two dimensions. Cause: the charge goes to the host by a blocking copy, and the field comes back.
// ./f02_plasma with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int NX = 1024, NY = 1024, N = NX * NY, P = 24 << 20;

__global__ void start(float *x, float *y, float *u, float *v) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned s = i * 747796405u + 2891336453u;
    auto draw = [&] { s ^= s << 13; s ^= s >> 17; s ^= s << 5; return s * 2.3283064e-10f; };
    // Neighbours in memory are neighbours in space, as after a sort.
    int cell = (int)((long long)i * N / P);
    x[i] = cell % NX + 0.999f * draw(); y[i] = cell / NX + 0.999f * draw();
    u[i] = 0.02f * (draw() - 0.5f); v[i] = 0.02f * (draw() - 0.5f);
}
__global__ void clear(float *q) { q[blockIdx.x * blockDim.x + threadIdx.x] = 0; }
__global__ void deposit(const float *x, const float *y, float *q) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int a = (int)x[i] & (NX - 1), b = (int)y[i] & (NY - 1);
    atomicAdd(q + b * NX + a, 1e-3f);
}
__global__ void relax(const float *q, const float *f, float *g) {
    int k = blockIdx.x * blockDim.x + threadIdx.x, i = k & (NX - 1), j = k / NX;
    float s = f[j * NX + ((i + 1) & (NX - 1))] + f[j * NX + ((i - 1) & (NX - 1))]
            + f[((j + 1) & (NY - 1)) * NX + i] + f[((j - 1) & (NY - 1)) * NX + i];
    g[k] = 0.25f * (s + q[k] - 0.024f);
}
__global__ void push(float *x, float *y, float *u, float *v, const float *f) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    int i = (int)x[n] & (NX - 1), j = (int)y[n] & (NY - 1);
    u[n] += 1e-4f * (f[j * NX + ((i + 1) & (NX - 1))] - f[j * NX + ((i - 1) & (NX - 1))]);
    v[n] += 1e-4f * (f[((j + 1) & (NY - 1)) * NX + i] - f[((j - 1) & (NY - 1)) * NX + i]);
    float a = x[n] + u[n], b = y[n] + v[n];
    x[n] = a - NX * floorf(a / NX); y[n] = b - NY * floorf(b / NY);
}

float *x, *y, *u, *v, *q, *f, *g;
std::vector<float> host(N);

void step(bool cause) {
    clear<<<N / 256, 256>>>(q);
    deposit<<<P / 256, 256>>>(x, y, q);
    if (cause) {
        OK(cudaMemcpy(host.data(), q, N * sizeof(float), cudaMemcpyDeviceToHost));
        OK(cudaMemcpy(q, host.data(), N * sizeof(float), cudaMemcpyHostToDevice));
    }
    for (int k = 0; k < 20; k++) { relax<<<N / 256, 256>>>(q, f, g); std::swap(f, g); }
    push<<<P / 256, 256>>>(x, y, u, v, f);
    OK(cudaGetLastError());
}

int main(int argc, char **argv) {
    for (float **each : {&x, &y, &u, &v}) OK(cudaMalloc(each, P * sizeof(float)));
    for (float **each : {&q, &f, &g}) { OK(cudaMalloc(each, N * sizeof(float))); OK(cudaMemset(*each, 0, N * sizeof(float))); }
    start<<<P / 256, 256>>>(x, y, u, v);
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
