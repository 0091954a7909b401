// Shallow water on a staggered grid; each step the height is kept for the output.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <algorithm>
#include <cuda_runtime.h>

__global__ void speed(float* u, float* v, const float* h, int n, float k) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= n) return;
    int at = y * n + x, right = y * n + (x + 1) % n, down = ((y + 1) % n) * n + x;
    u[at] -= k * (h[right] - h[at]);
    v[at] -= k * (h[down] - h[at]);
}

__global__ void height(const float* u, const float* v, float* h, int n, float k) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= n) return;
    int at = y * n + x, left = y * n + (x + n - 1) % n, up = ((y + n - 1) % n) * n + x;
    h[at] -= k * (u[at] - u[left] + v[at] - v[up]);
}

__global__ void start(float* u, float* v, float* h, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= n) return;
    u[y * n + x] = v[y * n + x] = 0;
    h[y * n + x] = 1.0f + (x > n / 3 && x < n / 2 && y > n / 3 && y < n / 2);
}

int main(int argc, char** argv) {
    int steps = 60, n = 2048, sub = 24, kept = 4;
    bool planted = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--steps")) steps = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--variant")) planted = !strcmp(argv[i + 1], "planted");
    }
    size_t bytes = size_t(n) * n * sizeof(float);
    float *u, *v, *h, *copy;
    cudaMalloc(&u, bytes), cudaMalloc(&v, bytes), cudaMalloc(&h, bytes), cudaMalloc(&copy, bytes);
    std::vector<float*> out(kept);
    for (auto& o : out) {
        if (planted) memset(o = (float*)malloc(bytes), 0, bytes);
        else cudaMallocHost(&o, bytes);
    }
    cudaStream_t work, output;
    cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking), cudaStreamCreateWithFlags(&output, cudaStreamNonBlocking);
    cudaEvent_t ready, taken;
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), cudaEventCreateWithFlags(&taken, cudaEventDisableTiming);
    dim3 grid(n / 256, n), block(256);
    start<<<grid, block, 0, work>>>(u, v, h, n);
    std::vector<double> times;
    auto now = [] { return std::chrono::steady_clock::now(); };
    auto begin = now(), last = begin;
    for (int step = -8; step < steps; ++step) {
        if (step == 0) {
            cudaDeviceSynchronize();
            begin = last = now();
        }
        for (int s = 0; s < sub; ++s) {
            speed<<<grid, block, 0, work>>>(u, v, h, n, 0.2f);
            height<<<grid, block, 0, work>>>(u, v, h, n, 0.2f);
        }
        float* to = out[(step + 8) % kept];
        if (planted) {
            cudaStreamSynchronize(work);
            cudaMemcpy(to, h, bytes, cudaMemcpyDeviceToHost);
        } else {
            cudaStreamWaitEvent(work, taken, 0);
            cudaMemcpyAsync(copy, h, bytes, cudaMemcpyDeviceToDevice, work);
            cudaEventRecord(ready, work);
            cudaStreamWaitEvent(output, ready, 0);
            cudaMemcpyAsync(to, copy, bytes, cudaMemcpyDeviceToHost, output);
            cudaEventRecord(taken, output);
        }
        if (step >= 0 && step % 10 == 9) {
            cudaDeviceSynchronize();
            printf("step %d height %.4f\n", step + 1, to[n]);
            fflush(stdout);
            times.push_back(std::chrono::duration<double, std::milli>(now() - last).count() / 10);
            last = now();
        }
    }
    double mean = std::chrono::duration<double, std::milli>(last - begin).count() / steps;
    std::sort(times.begin(), times.end());
    printf("{\"step_ms_median\": %.4f, \"step_ms_mean\": %.4f, \"steps\": %d, \"program\": \"c06_shallow_water\", "
           "\"variant\": \"%s\"}\n", times[times.size() / 2], mean, steps, planted ? "planted" : "mended");
}
