// An ensemble of oscillators, CUDA C++. Cause: each of its members is a launch of its own.
// ./k02_members with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int MEMBERS = 80, EACH = 1024, SUBSTEPS = 400;

__global__ void integrate(float2 *state, const float *force, int first, float dt) {
    int member = first + blockIdx.y, i = member * EACH + blockIdx.x * blockDim.x + threadIdx.x;
    float2 s = state[i];
    float f = force[member];
    for (int k = 0; k < SUBSTEPS; k++) {
        s.x += dt * s.y;
        s.y += dt * (f - s.x - 0.3f * s.x * s.x * s.x - 0.1f * s.y);
    }
    state[i] = s;
}

__global__ void mean(const float2 *state, float *force) {
    float sum = 0;
    for (int i = threadIdx.x; i < EACH; i += blockDim.x) sum += state[blockIdx.x * EACH + i].x;
    for (int k = 16; k; k /= 2) sum += __shfl_down_sync(~0u, sum, k);
    if (threadIdx.x == 0) force[blockIdx.x] = 0.1f + 0.01f * sum / EACH;
}

float2 *state;
float *force;

void step(bool cause) {
    for (int k = 0; k < 4; k++) {
        if (cause)
            for (int m = 0; m < MEMBERS; m++) integrate<<<dim3(EACH / 256, 1), 256>>>(state, force, m, 1e-3f);
        else
            integrate<<<dim3(EACH / 256, MEMBERS), 256>>>(state, force, 0, 1e-3f);
        mean<<<MEMBERS, 256>>>(state, force);
    }
    OK(cudaStreamSynchronize(0));
}

int main(int argc, char **argv) {
    OK(cudaMalloc(&state, MEMBERS * EACH * sizeof(float2)));
    OK(cudaMalloc(&force, MEMBERS * sizeof(float)));
    OK(cudaMemset(state, 0, MEMBERS * EACH * sizeof(float2)));
    OK(cudaMemset(force, 0, MEMBERS * sizeof(float)));
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
