// Droplets as smoothed particles, CUDA C++. Cause: particles are sorted by thrust, which allocates and frees its memory in each step.
// ./m05_droplets with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cub/cub.cuh>
#include <utility>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)
constexpr int SIDE = 32, CELLS = SIDE * SIDE * SIDE, N = CELLS * 8;
__device__ __forceinline__ int cell(float4 p) {
    int x = min(SIDE - 1, max(0, (int)p.x)), y = min(SIDE - 1, max(0, (int)p.y)), z = min(SIDE - 1, max(0, (int)p.z));
    return (z * SIDE + y) * SIDE + x;
}
__global__ void number(const float4 *p, unsigned *key, int *which) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    key[i] = cell(p[i]);
    which[i] = i;
}
__global__ void gather(const float4 *p, const float4 *v, const int *which, const unsigned *key, float4 *q, float4 *w, int *first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    q[i] = p[which[i]];
    w[i] = v[which[i]];
    unsigned before = i ? key[i - 1] : 0u;
    if (!i) first[0] = 0;
    for (unsigned c = before + 1; c <= key[i]; c++) first[c] = i;
    if (i == N - 1) for (unsigned c = key[i] + 1; c <= CELLS; c++) first[c] = N;
}
__global__ void push(const float4 *q, const float4 *w, const int *first, float4 *p, float4 *v, float dt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 a = q[i], s = w[i];
    float fx = 0, fy = 0, fz = 0;
    int cx = min(SIDE - 1, max(0, (int)a.x)), cy = min(SIDE - 1, max(0, (int)a.y)), cz = min(SIDE - 1, max(0, (int)a.z));
    for (int z = max(0, cz - 1); z <= min(SIDE - 1, cz + 1); z++)
        for (int y = max(0, cy - 1); y <= min(SIDE - 1, cy + 1); y++) {
            int left = (z * SIDE + y) * SIDE + max(0, cx - 1), right = (z * SIDE + y) * SIDE + min(SIDE - 1, cx + 1);
            for (int j = first[left]; j < first[right + 1]; j++) {
                float dx = a.x - q[j].x, dy = a.y - q[j].y, dz = a.z - q[j].z, r = dx * dx + dy * dy + dz * dz;
                if (r > 0 && r < 1) { float f = (1 - r) * rsqrtf(r + 1e-4f); fx += f * dx; fy += f * dy; fz += f * dz; }
            }
        }
    s.x += dt * fx; s.y += dt * fy; s.z += dt * (fz - 0.1f);
    a.x += dt * s.x; a.y += dt * s.y; a.z += dt * s.z;
    if (a.x < 0 || a.x > SIDE) { s.x = -s.x; a.x = fminf(fmaxf(a.x, 0), SIDE); }
    if (a.y < 0 || a.y > SIDE) { s.y = -s.y; a.y = fminf(fmaxf(a.y, 0), SIDE); }
    if (a.z < 0 || a.z > SIDE) { s.z = -s.z; a.z = fminf(fmaxf(a.z, 0), SIDE); }
    p[i] = a; v[i] = s;
}
float4 *p, *v, *q, *w;
unsigned *key, *key2;
int *which, *which2, *first;
void *scratch;
size_t bytes;
void step(bool cause) {
    number<<<N / 256, 256>>>(p, key, which);
    if (cause) {
        thrust::sort_by_key(thrust::device, thrust::device_ptr<unsigned>(key), thrust::device_ptr<unsigned>(key) + N, thrust::device_ptr<int>(which));
    } else {
        OK(cub::DeviceRadixSort::SortPairs(scratch, bytes, key, key2, which, which2, N));
        std::swap(key, key2);
        std::swap(which, which2);
    }
    gather<<<N / 256, 256>>>(p, v, which, key, q, w, first);
    push<<<N / 256, 256>>>(q, w, first, p, v, 1e-3f);
}
int main(int argc, char **argv) {
    for (float4 **f : {&p, &v, &q, &w}) { OK(cudaMalloc(f, N * sizeof(float4))); OK(cudaMemset(*f, 0, N * sizeof(float4))); }
    for (unsigned **f : {&key, &key2}) OK(cudaMalloc(f, N * 4));
    for (int **f : {&which, &which2, &first}) OK(cudaMalloc(f, (N + 1) * 4));
    OK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, key, key2, which, which2, N));
    OK(cudaMalloc(&scratch, bytes));
    float4 *host = (float4 *)malloc(N * sizeof(float4));
    for (int i = 0; i < N; i++) host[i] = {SIDE * (rand() / (float)RAND_MAX), SIDE * (rand() / (float)RAND_MAX), SIDE * (rand() / (float)RAND_MAX), 0};
    OK(cudaMemcpy(p, host, N * sizeof(float4), cudaMemcpyHostToDevice));
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
