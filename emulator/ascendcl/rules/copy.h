// The parts of a copy call that the single, two-dimensional and batched forms share.
#pragma once
#include "rules/call.h"

namespace aclemu {

struct CopyCall {
  void* dst;
  size_t dest_max;
  const void* src;
  size_t count;
  aclrtMemcpyKind kind;
};

// What can be said without looking at the places; in the order of the runtime.
aclError CheckArguments(const CopyCall& call);
// What imported memory may be used for, kind against addresses, and peer access between devices. kind_rule: C2 for
// asynchronous copies, C1 for others and batches.
aclError CheckRoute(Runtime& runtime, aclrtMemcpyKind kind, const Place& dst, const Place& src, Rule kind_rule);
// What synchronous and asynchronous copies demand of the places, with the above.
aclError CheckPlaces(Runtime& runtime, const CopyCall& call, const Place& dst, const Place& src, Rule kind_rule);

// Rule G1: nothing synchronous while a graph is being captured.
aclError CheckCapture(Runtime& runtime);

// For asynchronous copies. Rule C8.
aclError CheckAligned(const Place& dst, const Place& src);
bool IsPageable(const Place& dst, const Place& src);
// Rule C7 and the kind. *now: the copy is to be made by the call itself, after DrainForPageable.
aclError CheckPageable(aclrtMemcpyKind kind, const Place& dst, const Place& src, bool* now);
aclError DrainForPageable(Stream& stream);

aclError CopyNow(const Place& dst, const Place& src, uint64_t bytes);
// With the faults of a direction that were asked for at the call.
aclError SubmitCopy(Stream& stream, const Place& dst, const Place& src, uint64_t bytes);

}  // namespace aclemu
