// SPDX-License-Identifier: GPL-2.0 OR MIT
// usage: allreduce RANK RANKS DIRECTORY DEVICE GID-INDEX
//
// One of several processes that add up their vectors by gloo over verbs, for the row gloo/allreduce_ring. Each process compares every
// element in every round. Rank 0 prints the bytes of vectors per second. The processes find each other by files in DIRECTORY.
#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

int main(int argc, char** argv) {
  constexpr int kElements = 1 << 16, kRounds = 20;
  if (argc != 6) {
    std::fprintf(stderr, "usage: %s RANK RANKS DIRECTORY DEVICE GID-INDEX\n", argv[0]);
    return 2;
  }
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  gloo::transport::ibverbs::attr attr;
  attr.name = argv[4];
  attr.port = 1;
  attr.index = std::atoi(argv[5]);
  auto device = gloo::transport::ibverbs::CreateDevice(attr);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(argv[3]);
  context->connectFullMesh(store, device);

  std::vector<float> data(kElements);
  gloo::AllreduceRing<float> sum(context, {data.data()}, kElements);
  std::chrono::duration<double> busy{};
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kElements; ++i) data[i] = static_cast<float>((rank + 1) * (i % 1000 + round));
    const auto began = std::chrono::steady_clock::now();
    sum.run();
    busy += std::chrono::steady_clock::now() - began;
    for (int i = 0; i < kElements; ++i) {
      const auto expected = static_cast<float>(ranks * (ranks + 1) / 2 * (i % 1000 + round));
      if (data[i] != expected) {
        std::printf("rank %d, round %d: element %d is %f, not %f\n", rank, round, i, data[i], expected);
        return 1;
      }
    }
  }
  if (rank == 0) std::printf("%d vectors right, %.0f bytes/s\n", kRounds, kRounds * kElements * sizeof(float) / busy.count());
  return 0;
}
