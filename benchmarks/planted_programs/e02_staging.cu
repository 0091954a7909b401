// Records of a detector: staged in pinned memory, copied to the GPU, transformed, a summary fetched.
// Cause: the pinned buffer is allocated and freed for each record (lupinemachines/lupine#208, pytorch/tensorpipe#259: reuse it).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>
__global__ void calibrate(float *x, int n, int turns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float a = x[i], y = 0.1f;
  for (int k = 0; k < turns; ++k) y = fmaf(a, y, 0.01f);
  x[i] = y;
}
__global__ void summarize(const float *x, float *sum, int n) {
  __shared__ float part[256];
  float s = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) s += x[i];
  part[threadIdx.x] = s;
  __syncthreads();
  for (int k = 128; k; k >>= 1) { if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k]; __syncthreads(); }
  if (!threadIdx.x) atomicAdd(sum, part[0]);
}
const int N = 1 << 21;
float *d, *d_sum, *h_sum, *kept;
std::vector<float> record(N, 0.5f);
cudaStream_t stream;
void step(bool cause) {
  float *staged = kept;
  if (cause) cudaMallocHost(&staged, N * 4);
  memcpy(staged, record.data(), N * 4);
  cudaMemcpyAsync(d, staged, N * 4, cudaMemcpyHostToDevice, stream);
  cudaMemsetAsync(d_sum, 0, 4, stream);
  for (int k = 0; k < 6; ++k) calibrate<<<N / 256, 256, 0, stream>>>(d, N, 2000);
  summarize<<<264, 256, 0, stream>>>(d, d_sum, N);
  cudaMemcpyAsync(h_sum, d_sum, 4, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  record[0] = 0.5f + 1e-9f * *h_sum;
  if (cause) cudaFreeHost(staged);
}
double run(bool cause, int steps) {
  auto t = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step(cause);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
}
int main(int argc, char **argv) {
  cudaMalloc(&d, N * 4); cudaMalloc(&d_sum, 4);
  cudaMallocHost(&h_sum, 4); cudaMallocHost(&kept, N * 4);
  cudaStreamCreate(&stream);
  int steps = atoi(argv[2]);
  if (!strcmp(argv[1], "turns")) {
    FILE *f = fopen(argv[5], "a");
    run(false, 10); run(true, 10);
    for (const char *o = argv[4]; *o; ++o) { run(*o == 'B', 3); fprintf(f, "[\"%c\", %.5f]\n", *o, run(*o == 'B', steps)); }
    fclose(f);
  } else run(!strcmp(argv[1], "with"), steps);
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
