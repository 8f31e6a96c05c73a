// SPDX-License-Identifier: GPL-2.0 OR MIT
// Describes Verbena to Google's rdma-unit-test, for scripts/lib/users-suites. No test is excluded here: failures are shown, with their
// causes from scripts/lib/users-causes.

#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "infiniband/verbs.h"
#include "internal/introspection_registrar.h"
#include "public/introspection.h"

namespace rdma_unit_test {

class IntrospectionVerbena : public NicIntrospection {
 public:
  static void Register() {
    IntrospectionRegistrar::GetInstance().Register(
        "verbena", [](const std::string& name, const ibv_device_attr& attr) { return new IntrospectionVerbena(name, attr); });
  }

  // ibv_post_send() fails in RESET, INIT and RTR, as ibv_post_send(3) requires.
  bool SilentlyDropSendWrWhenResetInitRtr() const override { return false; }

  bool SupportsReRegMr() const override { return true; }

  // An emulated processor is slow.
  bool IsSlowNic() const override { return true; }

 private:
  IntrospectionVerbena(const std::string& name, const ibv_device_attr& attr) : NicIntrospection(name, attr) {}
};

}  // namespace rdma_unit_test
