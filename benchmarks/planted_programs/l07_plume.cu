// A plume in three dimensions with a solver for its pressure, CUDA C++. Cause: the field of speeds is copied to the host, and its largest sought there.
// ./l07_plume with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
constexpr int N = 128;
__device__ __forceinline__ int at(int x, int y, int z) { return (z * N + y) * N + x; }
__global__ void advect(const float *q, const float *u, const float *v, const float *w, float *out, float dt) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z;
    int c = at(x, y, z);
    int xm = at((x + N - 1) % N, y, z), xp = at((x + 1) % N, y, z), ym = at(x, (y + N - 1) % N, z), yp = at(x, (y + 1) % N, z);
    int zm = at(x, y, (z + N - 1) % N), zp = at(x, y, (z + 1) % N);
    float d = u[c] * (q[xp] - q[xm]) + v[c] * (q[yp] - q[ym]) + w[c] * (q[zp] - q[zm]);
    float l = q[xm] + q[xp] + q[ym] + q[yp] + q[zm] + q[zp] - 6 * q[c];
    out[c] = q[c] + dt * (-0.5f * d + 0.05f * l);
}
__global__ void divergence(const float *u, const float *v, const float *w, double *b) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z;
    b[at(x, y, z)] = 0.5 * (u[at((x + 1) % N, y, z)] - u[at((x + N - 1) % N, y, z)] + v[at(x, (y + 1) % N, z)] -
                            v[at(x, (y + N - 1) % N, z)] + w[at(x, y, (z + 1) % N)] - w[at(x, y, (z + N - 1) % N)]);
}
__global__ void jacobi(const double *p, const double *b, double *out) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z;
    out[at(x, y, z)] = (p[at((x + N - 1) % N, y, z)] + p[at((x + 1) % N, y, z)] + p[at(x, (y + N - 1) % N, z)] + p[at(x, (y + 1) % N, z)] +
                        p[at(x, y, (z + N - 1) % N)] + p[at(x, y, (z + 1) % N)] - b[at(x, y, z)]) / 6.0;
}
__global__ void project(float *u, float *v, float *w, const double *p, float *speed) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z, c = at(x, y, z);
    u[c] -= 0.5f * (float)(p[at((x + 1) % N, y, z)] - p[at((x + N - 1) % N, y, z)]);
    v[c] -= 0.5f * (float)(p[at(x, (y + 1) % N, z)] - p[at(x, (y + N - 1) % N, z)]);
    w[c] -= 0.5f * (float)(p[at(x, y, (z + 1) % N)] - p[at(x, y, (z + N - 1) % N)]);
    speed[c] = sqrtf(u[c] * u[c] + v[c] * v[c] + w[c] * w[c]);
}
__global__ void largest(const float *speed, int n, int *out) {
    float m = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) m = fmaxf(m, speed[i]);
    for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (threadIdx.x % 32 == 0) atomicMax(out, __float_as_int(m));
}
#define OK(x) do { cudaError_t e = (x); if (e) { printf("%s\n", cudaGetErrorString(e)); exit(1); } } while (0)
const int total = N * N * N;
float *u, *v, *w, *u2, *v2, *w2, *speed;
double *p, *p2, *b;
int *top;
float dt = 0.1f;
std::vector<float> host(total);
void step(bool cause) {
    dim3 grid(N / 32, N / 8, N), block(32, 8);
    advect<<<grid, block>>>(u, u, v, w, u2, dt);
    advect<<<grid, block>>>(v, u, v, w, v2, dt);
    advect<<<grid, block>>>(w, u, v, w, w2, dt);
    std::swap(u, u2), std::swap(v, v2), std::swap(w, w2);
    divergence<<<grid, block>>>(u, v, w, b);
    for (int i = 0; i < 400; i++) {
        jacobi<<<grid, block>>>(p, b, p2);
        std::swap(p, p2);
    }
    project<<<grid, block>>>(u, v, w, p, speed);
    float m = 0;
    if (cause) {
        OK(cudaMemcpy(host.data(), speed, total * sizeof(float), cudaMemcpyDeviceToHost));
        for (float s : host) m = std::max(m, s);
    } else {
        OK(cudaMemsetAsync(top, 0, 4));
        largest<<<264, 256>>>(speed, total, top);
        OK(cudaMemcpy(&m, top, 4, cudaMemcpyDeviceToHost));
    }
    dt = std::min(0.2f, 0.5f / (m + 1e-6f));
}
int main(int argc, char **argv) {
    for (float **f : {&u, &v, &w, &u2, &v2, &w2, &speed}) OK(cudaMalloc(f, total * 4));
    for (double **f : {&p, &p2, &b}) { OK(cudaMalloc(f, total * 8)); OK(cudaMemset(*f, 0, total * 8)); }
    OK(cudaMalloc(&top, 4));
    for (float *f : {u, v, w}) {
        for (float &x : host) x = rand() / (float)RAND_MAX - 0.5f;
        OK(cudaMemcpy(f, host.data(), total * 4, cudaMemcpyHostToDevice));
    }
    int steps = atoi(argv[2]);
    if (strcmp(argv[1], "turns")) {
        for (int i = 0; i < steps; i++) step(!strcmp(argv[1], "with"));
        OK(cudaDeviceSynchronize());
        return 0;
    }
    for (int i = 0; i < 2 * atoi(argv[3]); i++) step(i % 2);
    FILE *file = fopen(argv[5], "a");
    for (char *each = argv[4]; *each; each++) {
        OK(cudaDeviceSynchronize());
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; i++) step(*each == 'B');
        OK(cudaDeviceSynchronize());
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
        fprintf(file, "[\"%c\", %f]\n", *each, ms);
    }
    fclose(file);
}
