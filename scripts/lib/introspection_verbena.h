// SPDX-License-Identifier: GPL-2.0 OR MIT
// Tells google's rdma-unit-test of Verbena, for scripts/lib/users-suites. It needs no exceptions: what fails is shown, and its cause is
// in scripts/lib/users-causes.

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

  // ibv_post_send() fails, as ibv_post_send(3) has it.
  bool SilentlyDropSendWrWhenResetInitRtr() const override { return false; }

  bool SupportsReRegMr() const override { return true; }

  // On an emulated processor all is slow.
  bool IsSlowNic() const override { return true; }

 private:
  IntrospectionVerbena(const std::string& name, const ibv_device_attr& attr) : NicIntrospection(name, attr) {}
};

}  // namespace rdma_unit_test
