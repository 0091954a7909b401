// Molecules in cells, CUDA C++. Cause: each launch is checked by waiting for the GPU.
// ./i09_checks with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int CELLS = 24, EACH = 16, M = CELLS * CELLS * CELLS, N = M * EACH, INNER = 6;

__device__ int wrap(int a) { return (a + CELLS) % CELLS; }

__global__ void drift(float4 *x, const float4 *v, float dt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 a = x[i], b = v[i];
    x[i] = {a.x + dt * b.x, a.y + dt * b.y, a.z + dt * b.z, 0.f};
}

__global__ void forces(const float4 *x, float4 *f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, c = i / EACH, cx = c % CELLS, cy = c / CELLS % CELLS, cz = c / CELLS / CELLS;
    float4 a = x[i], sum = {0, 0, 0, 0};
    for (int k = 0; k < 27; k++) {
        int o = wrap(cx + k % 3 - 1) + CELLS * (wrap(cy + k / 3 % 3 - 1) + CELLS * wrap(cz + k / 9 - 1));
        for (int j = 0; j < EACH; j++) {
            float4 b = x[o * EACH + j];
            float dx = a.x - b.x, dy = a.y - b.y, dz = a.z - b.z, r = dx * dx + dy * dy + dz * dz + 0.5f;
            float q = 1 / (r * r * r), g = q * (2 * q - 1) / r;
            sum.x += g * dx, sum.y += g * dy, sum.z += g * dz;
        }
    }
    f[i] = sum;
}

__global__ void kick(float4 *v, const float4 *f, float dt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 a = v[i], b = f[i];
    v[i] = {a.x + dt * b.x, a.y + dt * b.y, a.z + dt * b.z, 0.f};
}

__global__ void energy(const float4 *v, float *sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 a = v[i];
    float e = a.x * a.x + a.y * a.y + a.z * a.z;
    for (int k = 16; k; k /= 2) e += __shfl_down_sync(~0u, e, k);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, e);
}

__global__ void thermostat(float4 *v, float *sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float s = rsqrtf(fmaxf(1e-6f, 0.1f * sum[0] / N + 0.9f));
    v[i].x *= s, v[i].y *= s, v[i].z *= s;
}

float4 *x, *v, *f;
float *sum;

void check(bool cause) {
    OK(cudaGetLastError());
    if (cause) OK(cudaDeviceSynchronize());
}

void step(bool cause) {
    constexpr int G = N / 128;
    for (int k = 0; k < INNER; k++) {
        drift<<<G, 128>>>(x, v, 1e-4f), check(cause);
        forces<<<G, 128>>>(x, f), check(cause);
        kick<<<G, 128>>>(v, f, 1e-4f), check(cause);
    }
    OK(cudaMemsetAsync(sum, 0, sizeof(float)));
    energy<<<G, 128>>>(v, sum), check(cause);
    thermostat<<<G, 128>>>(v, sum), check(cause);
}

int main(int argc, char **argv) {
    for (float4 **each : {&x, &v, &f}) OK(cudaMalloc(each, N * sizeof(float4)));
    OK(cudaMalloc(&sum, sizeof(float)));
    OK(cudaMemset(v, 0, N * sizeof(float4)));
    float4 *host = new float4[N];
    for (int i = 0; i < N; i++) host[i] = {(float)(rand() % 1000) / 50, (float)(rand() % 1000) / 50, (float)(rand() % 1000) / 50, 0.f};
    OK(cudaMemcpy(x, host, N * sizeof(float4), cudaMemcpyHostToDevice));
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
