// Heat in a slab whose boundary a table on the host gives. Cause: the boundary is copied by a blocking call from pageable memory.
// ./h03_boundary with STEPS | without STEPS | turns STEPS WARM_UP ORDER FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>
#define OK(call) do { cudaError_t e = (call); if (e) { fprintf(stderr, "%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int NX = 1024, NY = 1024, NZ = 64, PLANE = NX * NY;

__global__ void heat(const float *a, float *b, const float *edge) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % NX, y = i / NX;
    if (x == 0 || y == 0 || x == NX - 1 || y == NY - 1) return;
    for (int z = 0; z < NZ; z++) {
        const float *p = a + (size_t)z * PLANE + i;
        float below = z ? p[-PLANE] : edge[i], above = z < NZ - 1 ? p[PLANE] : 0.f;
        b[(size_t)z * PLANE + i] = p[0] + 0.1f * (p[1] + p[-1] + p[NX] + p[-NX] + below + above - 6 * p[0]);
    }
}

float *a, *b, *edge[2], *pinned;
std::vector<float> table(4 * PLANE, 1.f);
cudaStream_t side;
cudaEvent_t ready[2], used[2];
int at = 0;

void step(bool cause) {
    const float *row = table.data() + (size_t)(at % 4) * PLANE;
    int k = at % 2;
    if (cause) {
        OK(cudaMemcpy(edge[k], row, PLANE * sizeof(float), cudaMemcpyHostToDevice));
    } else {
        OK(cudaStreamWaitEvent(side, used[k], 0));
        OK(cudaMemcpyAsync(edge[k], pinned + (size_t)(at % 4) * PLANE, PLANE * sizeof(float), cudaMemcpyHostToDevice, side));
        OK(cudaEventRecord(ready[k], side));
        OK(cudaStreamWaitEvent(0, ready[k], 0));
    }
    for (int s = 0; s < 4; s++) { heat<<<PLANE / 256, 256>>>(a, b, edge[k]); std::swap(a, b); }
    if (!cause) OK(cudaEventRecord(used[k], 0));
    at++;
    OK(cudaGetLastError());
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)NZ * PLANE * sizeof(float);
    for (float **each : {&a, &b}) { OK(cudaMalloc(each, bytes)); OK(cudaMemset(*each, 0, bytes)); }
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    OK(cudaMallocHost(&pinned, 4 * PLANE * sizeof(float)));
    memcpy(pinned, table.data(), 4 * PLANE * sizeof(float));
    for (int k = 0; k < 2; k++) {
        OK(cudaMalloc(&edge[k], PLANE * sizeof(float)));
        for (cudaEvent_t *each : {&ready[k], &used[k]}) OK(cudaEventCreateWithFlags(each, cudaEventDisableTiming));
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
