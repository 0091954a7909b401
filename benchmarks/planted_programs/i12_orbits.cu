// Stars by direct summation, CUDA C++. Clean: one kernel fills the GPU; positions are written beside it.
// ./i12_orbits with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int N = 135168, BLOCK = 256;

__global__ void pull(const float4 *x, float4 *next, float4 *v, float dt) {
    __shared__ float4 tile[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float4 a = x[i], s = {0, 0, 0, 0};
    for (int j = 0; j < N; j += BLOCK) {
        tile[threadIdx.x] = x[j + threadIdx.x];
        __syncthreads();
        #pragma unroll 8
        for (int k = 0; k < BLOCK; k++) {
            float4 b = tile[k];
            float dx = b.x - a.x, dy = b.y - a.y, dz = b.z - a.z, r = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-2f);
            float w = b.w * r * r * r;
            s.x += w * dx, s.y += w * dy, s.z += w * dz;
        }
        __syncthreads();
    }
    float4 u = v[i];
    u.x += dt * s.x, u.y += dt * s.y, u.z += dt * s.z;
    v[i] = u;
    next[i] = {a.x + dt * u.x, a.y + dt * u.y, a.z + dt * u.z, a.w};
}

float4 *x, *next, *v, *written;
cudaStream_t side;
cudaEvent_t moved, copied;

void step(bool) {
    OK(cudaStreamWaitEvent(0, copied, 0));
    pull<<<N / BLOCK, BLOCK>>>(x, next, v, 1e-4f);
    std::swap(x, next);
    OK(cudaEventRecord(moved, 0));
    OK(cudaStreamWaitEvent(side, moved, 0));
    OK(cudaMemcpyAsync(written, x, N * sizeof(float4), cudaMemcpyDeviceToHost, side));
    OK(cudaEventRecord(copied, side));
    OK(cudaGetLastError());
}

int main(int argc, char **argv) {
    for (float4 **each : {&x, &next, &v}) OK(cudaMalloc(each, N * sizeof(float4)));
    OK(cudaMemset(v, 0, N * sizeof(float4)));
    OK(cudaMallocHost(&written, N * sizeof(float4)));
    for (int i = 0; i < N; i++) written[i] = {(float)(rand() % 9999), (float)(rand() % 9999), (float)(rand() % 9999), 1.f};
    OK(cudaMemcpy(x, written, N * sizeof(float4), cudaMemcpyHostToDevice));
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    for (cudaEvent_t *each : {&moved, &copied}) OK(cudaEventCreateWithFlags(each, cudaEventDisableTiming));
    int steps = atoi(argv[2]);
    if (strcmp(argv[1], "turns")) {
        for (int i = 0; i < steps; i++) step(true);
        OK(cudaDeviceSynchronize());
        return 0;
    }
    for (int i = 0; i < 2 * atoi(argv[3]); i++) step(true);
    FILE *file = fopen(argv[5], "a");
    for (char *each = argv[4]; *each; each++) {
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < steps; i++) step(true);
        OK(cudaDeviceSynchronize());
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
        fprintf(file, "[\"%c\", %f]\n", *each, ms);
    }
    fclose(file);
}
