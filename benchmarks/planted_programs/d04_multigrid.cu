// Poisson's equation in each time step by V cycles on nine grids. Planted: each kernel is launched; mended: one graph.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#define OK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)

__global__ void source(float *f, int n, float t) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < n && y < n) f[y * n + x] = sinf(x * 0.02f + t) * cosf(y * 0.03f - t);
}
__global__ void smooth(float *u, const float *f, int n, int color) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1 || ((x + y) & 1) != color) return;
    int i = y * n + x;
    u[i] = 0.25f * (u[i - 1] + u[i + 1] + u[i - n] + u[i + n] + f[i]);
}
__global__ void residual(const float *u, const float *f, float *r, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    int i = y * n + x;
    bool inside = x > 0 && y > 0 && x < n - 1 && y < n - 1;
    r[i] = inside ? f[i] - 4 * u[i] + u[i - 1] + u[i + 1] + u[i - n] + u[i + n] : 0;
}
__global__ void restrict_to(const float *r, float *f, float *u, int n) {  // n: of the coarse grid
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    const float *from = r + 4 * y * n + 2 * x;
    f[y * n + x] = from[0] + from[1] + from[2 * n] + from[2 * n + 1];
    u[y * n + x] = 0;
}
__global__ void prolong(float *u, const float *coarse, int n) {  // n: of the fine grid
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < n && y < n) u[y * n + x] += coarse[y / 2 * (n / 2) + x / 2];
}

const int FINEST = 1024, GRIDS = 9, CYCLES = 4;
float *u[GRIDS], *f[GRIDS], *r[GRIDS];
cudaStream_t stream;

void cycle(int level) {
    int n = FINEST >> level;
    dim3 block(32, 8), grid((n + 31) / 32, (n + 7) / 8);
    for (int i = 0; i < 4; ++i) smooth<<<grid, block, 0, stream>>>(u[level], f[level], n, i & 1);
    if (level == GRIDS - 1) return;
    residual<<<grid, block, 0, stream>>>(u[level], f[level], r[level], n);
    dim3 half((n / 2 + 31) / 32, (n / 2 + 7) / 8);
    restrict_to<<<half, block, 0, stream>>>(r[level], f[level + 1], u[level + 1], n / 2);
    cycle(level + 1);
    prolong<<<grid, block, 0, stream>>>(u[level], u[level + 1], n);
    for (int i = 0; i < 4; ++i) smooth<<<grid, block, 0, stream>>>(u[level], f[level], n, i & 1);
}

int main(int count, char **words) {
    int steps = 1000;
    std::string variant = "planted";
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(words[i], "--steps")) steps = atoi(words[i + 1]);
        if (!strcmp(words[i], "--variant")) variant = words[i + 1];
    }
    OK(cudaStreamCreate(&stream));
    for (int level = 0; level < GRIDS; ++level) {
        size_t bytes = sizeof(float) << 2 * (10 - level);
        for (float **each : {&u[level], &f[level], &r[level]}) {
            OK(cudaMalloc(each, bytes));
            OK(cudaMemset(*each, 0, bytes));
        }
    }
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < CYCLES; ++i) cycle(0);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&ready, graph, 0));
    float time = 0;
    auto step = [&](bool planted) {
        source<<<dim3(FINEST / 32, FINEST / 8), dim3(32, 8), 0, stream>>>(f[0], FINEST, time += 0.01f);
        if (planted) for (int i = 0; i < CYCLES; ++i) cycle(0);
        else OK(cudaGraphLaunch(ready, stream));
    };
    bool turns = variant == "turns";
    int blocks = turns ? 8 : 10, each = turns ? steps : std::max(steps / blocks, 1);
    std::vector<double> ms;
    for (int block = -2; block < blocks; ++block) {
        bool planted = turns ? (block & 3) == 0 || (block & 3) == 3 : variant == "planted";
        step(planted);
        OK(cudaStreamSynchronize(stream));
        auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < (block < 0 ? 8 : each); ++i) step(planted);
        OK(cudaStreamSynchronize(stream));
        auto ended = std::chrono::steady_clock::now();
        if (block >= 0) ms.push_back(std::chrono::duration<double, std::milli>(ended - began).count() / each);
    }
    OK(cudaGetLastError());
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    double mean = 0;
    for (double each : ms) mean += each / ms.size();
    printf("{\"step_ms_median\": %.4f, \"program\": \"d04_multigrid\", \"variant\": \"%s\", \"steps\": %d, \"blocks_ms\": [",
           (sorted[blocks / 2] + sorted[blocks / 2 - 1]) / 2, variant.c_str(), each * blocks);
    for (size_t i = 0; i < ms.size(); ++i) printf("%s%.4f", i ? ", " : "", ms[i]);
    printf("], \"step_ms_mean\": %.4f}\n", mean);
}
