// Reaction and diffusion in a plane, CUDA C++. Cause: the properties and the free memory of the GPU are asked for in each step.
// ./j03_patterns with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int N = 2048, SWEEPS = 24;

__global__ void react(const float *u, const float *v, float *nu, float *nv, float feed, float kill) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    int l = (x + N - 1) % N, r = (x + 1) % N, d = (y + N - 1) % N, o = (y + 1) % N, i = y * N + x;
    float a = u[i], b = v[i], lu = u[y * N + l] + u[y * N + r] + u[d * N + x] + u[o * N + x] - 4 * a;
    float lv = v[y * N + l] + v[y * N + r] + v[d * N + x] + v[o * N + x] - 4 * b, w = a * b * b;
    nu[i] = a + 0.16f * lu - w + feed * (1 - a);
    nv[i] = b + 0.08f * lv + w - (feed + kill) * b;
}

__global__ void total(const float *v, float *sum) {
    float s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N * N; i += gridDim.x * blockDim.x) s += v[i];
    for (int k = 16; k; k /= 2) s += __shfl_down_sync(~0u, s, k);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, s);
}

float *u, *v, *nu, *nv, *sum, *result;
int blocks;

void look() {
    cudaDeviceProp all;
    OK(cudaGetDeviceProperties(&all, 0));
    size_t available, most;
    OK(cudaMemGetInfo(&available, &most));
    blocks = 2 * all.multiProcessorCount;
}

void step(bool cause) {
    if (cause) look();
    for (int k = 0; k < SWEEPS; k++) {
        react<<<dim3(N / 256, N), 256>>>(u, v, nu, nv, 0.035f, 0.06f);
        std::swap(u, nu), std::swap(v, nv);
    }
    OK(cudaMemsetAsync(sum, 0, sizeof(float)));
    total<<<blocks, 256>>>(v, sum);
    OK(cudaMemcpyAsync(result, sum, sizeof(float), cudaMemcpyDeviceToHost));
    OK(cudaStreamSynchronize(0));
    if (*result < 0) exit(2);
}

int main(int argc, char **argv) {
    for (float **each : {&u, &v, &nu, &nv}) OK(cudaMalloc(each, N * N * sizeof(float)));
    OK(cudaMalloc(&sum, sizeof(float)));
    OK(cudaMallocHost(&result, sizeof(float)));
    float *host = new float[N * N];
    for (int i = 0; i < N * N; i++) host[i] = (rand() % 100) / 100.f;
    OK(cudaMemcpy(u, host, N * N * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(v, host, N * N * sizeof(float), cudaMemcpyHostToDevice));
    look();
    int steps = atoi(argv[2]);
    if (strcmp(argv[1], "turns")) {
        for (int i = 0; i < steps; i++) step(!strcmp(argv[1], "with"));
        return 0;
    }
    for (int i = 0; i < 2 * atoi(argv[3]); i++) step(i % 2);
    FILE *file = fopen(argv[5], "a");
    for (char *each = argv[4]; *each; each++) {
        for (int i = 0; i < 5; i++) step(*each == 'B');
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; i++) step(*each == 'B');
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
        fprintf(file, "[\"%c\", %f]\n", *each, ms);
    }
    fclose(file);
}
