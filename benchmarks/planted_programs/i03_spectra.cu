// Nonlinear Schrödinger equation by split steps with cuFFT. Cause: the plan is made and destroyed in each step.
// ./i03_spectra with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cufft.h>
#define OK(call) do { int e = (int)(call); if (e) { fprintf(stderr, "%s: %d\n", #call, e); exit(1); } } while (0)

constexpr int N = 256, PARTS = 4;
constexpr size_t ALL = (size_t)N * N * N;

__global__ void potential(cufftComplex *u, float dt) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    cufftComplex a = u[i];
    float phase = -dt * (a.x * a.x + a.y * a.y), s, c;
    sincosf(phase, &s, &c);
    u[i] = {a.x * c - a.y * s, a.x * s + a.y * c};
}

__global__ void kinetic(cufftComplex *u, float dt) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    int x = i % N, y = i / N % N, z = i / N / N;
    x = min(x, N - x), y = min(y, N - y), z = min(z, N - z);
    float s, c;
    sincosf(-dt * 0.5f * (x * x + y * y + z * z), &s, &c);
    cufftComplex a = u[i];
    u[i] = {(a.x * c - a.y * s) / ALL, (a.x * s + a.y * c) / ALL};
}

cufftComplex *u;
cufftHandle kept;

void step(bool cause) {
    cufftHandle plan = kept;
    if (cause) OK(cufftPlan3d(&plan, N, N, N, CUFFT_C2C));
    for (int k = 0; k < PARTS; k++) {
        potential<<<ALL / 256, 256>>>(u, 1e-4f);
        OK(cufftExecC2C(plan, u, u, CUFFT_FORWARD));
        kinetic<<<ALL / 256, 256>>>(u, 1e-4f);
        OK(cufftExecC2C(plan, u, u, CUFFT_INVERSE));
    }
    if (cause) OK(cufftDestroy(plan));
    OK(cudaGetLastError());
}

int main(int argc, char **argv) {
    OK(cudaMalloc(&u, ALL * sizeof(*u)));
    OK(cudaMemset(u, 1, ALL * sizeof(*u)));
    OK(cufftPlan3d(&kept, N, N, N, CUFFT_C2C));
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
