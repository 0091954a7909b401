// Filter of frames in tiles that come from the host and go back. Cause: one stream for all copies and kernels
// (NLESC-JCER/EigenCuda#23, mtazzari/galario#60: several streams, so that copies and kernels overlap).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
__global__ void filter(const float *in, float *out, int n, int turns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i], y = 0.3f;
  for (int k = 0; k < turns; ++k) y = fmaf(x, y, 0.001f);
  out[i] = y;
}
__global__ void sharpen(float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = out[i] * 1.5f - 0.5f * out[(i + 1) % n];
}
const int TILES = 8, N = 1 << 20, S = 4;
float *h_in, *h_out, *d_in[TILES], *d_out[TILES];
cudaStream_t streams[S];
void frame(bool cause) {
  for (int t = 0; t < TILES; ++t) {
    cudaStream_t s = streams[cause ? 0 : t % S];
    cudaMemcpyAsync(d_in[t], h_in + (size_t)t * N, N * 4, cudaMemcpyHostToDevice, s);
    filter<<<N / 256, 256, 0, s>>>(d_in[t], d_out[t], N, 2500);
    sharpen<<<N / 256, 256, 0, s>>>(d_out[t], N);
    cudaMemcpyAsync(h_out + (size_t)t * N, d_out[t], N * 4, cudaMemcpyDeviceToHost, s);
  }
  cudaDeviceSynchronize();
}
double run(bool cause, int steps) {
  auto t = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) frame(cause);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t).count() / steps;
}
int main(int argc, char **argv) {
  cudaMallocHost(&h_in, (size_t)TILES * N * 4);
  cudaMallocHost(&h_out, (size_t)TILES * N * 4);
  for (size_t i = 0; i < (size_t)TILES * N; ++i) h_in[i] = 0.5f;
  for (int t = 0; t < TILES; ++t) { cudaMalloc(&d_in[t], N * 4); cudaMalloc(&d_out[t], N * 4); }
  for (auto &s : streams) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  int steps = atoi(argv[2]);
  if (!strcmp(argv[1], "turns")) {
    FILE *f = fopen(argv[5], "a");
    run(false, 20); run(true, 20);
    for (const char *o = argv[4]; *o; ++o) { run(*o == 'B', 5); fprintf(f, "[\"%c\", %.5f]\n", *o, run(*o == 'B', steps)); }
    fclose(f);
  } else run(!strcmp(argv[1], "with"), steps);
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
