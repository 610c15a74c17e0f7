// Batched and two-dimensional copies.
#include <algorithm>
#include <numeric>
#include <vector>

#include "rules/copy.h"

namespace aclemu {
namespace {

constexpr size_t kMaxBatch = 4096;
constexpr size_t kMaxWidth = 5'000'000;
constexpr size_t kMaxHeight = 5'242'880;

// ---- batch ----

struct BatchCall {
  void** dsts;
  size_t* dest_maxs;
  void** srcs;
  size_t* sizes;
  size_t count;
  aclrtMemcpyBatchAttr* attrs;
  size_t* attr_indexes;
  size_t attr_count;
};

struct Move {
  Place dst, src;
  uint64_t bytes;
};

CallArgs ArgsOf(const BatchCall& call, const void* stream, bool has_stream) {
  CallArgs args{.stream = stream, .has_stream = has_stream};
  for (size_t i = 0; call.sizes != nullptr && i < std::min(call.count, kMaxBatch); ++i) args.bytes += call.sizes[i];
  return args;
}

// Attribute k holds for the entries from attr_indexes[k] up to the next index.
aclError CheckShape(const BatchCall& call) {
  if (call.dsts == nullptr || call.dest_maxs == nullptr || call.srcs == nullptr || call.sizes == nullptr) {
    return NullPointer("dsts, destMaxs, srcs or sizes");
  }
  if (call.attrs == nullptr || call.attr_indexes == nullptr) return NullPointer("attrs or attrsIndexes");
  if (call.count == 0 || call.attr_count == 0 || call.attr_count > call.count) {
    return Fail(ACL_ERROR_INVALID_PARAM, "%zu entries with %zu attributes", call.count, call.attr_count);
  }
  if (call.count > kMaxBatch)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "%zu entries, at most %zu", call.count, kMaxBatch);
  for (size_t i = 0; i < call.attr_count; ++i) {
    bool ascends = i == 0 ? call.attr_indexes[0] == 0 : call.attr_indexes[i] > call.attr_indexes[i - 1];
    if (!ascends || call.attr_indexes[i] >= call.count) {
      return Fail(ACL_ERROR_INVALID_PARAM, "attrsIndexes[%zu] is %zu", i, call.attr_indexes[i]);
    }
  }
  return ACL_SUCCESS;
}

bool LocationFits(const aclrtMemLocation& location, const Place& place) {
  if (!place.OnHost()) {
    return location.type == ACL_MEM_LOCATION_TYPE_DEVICE && static_cast<int>(location.id) == place.range->device;
  }
  return location.type == ACL_MEM_LOCATION_TYPE_HOST || location.type == ACL_MEM_LOCATION_TYPE_HOST_NUMA ||
         (location.type == ACL_MEM_LOCATION_TYPE_UNREGISTERED && place.cls == MemClass::kPageable);
}

aclError CheckEntry(Runtime& runtime, const BatchCall& call, size_t i, const aclrtMemcpyBatchAttr& attr, Move* move) {
  CopyCall copy{call.dsts[i], call.dest_maxs[i], call.srcs[i], call.sizes[i], ACL_MEMCPY_DEFAULT};
  ACLEMU_TRY(CheckArguments(copy));
  *move = {runtime.ranges.Find(copy.dst), runtime.ranges.Find(copy.src), copy.count};
  ACLEMU_TRY(CheckPlaces(runtime, copy, move->dst, move->src, Rule::kC1));
  Direction direction = DirectionOf(move->dst, move->src);
  if (direction == Direction::kH2H || direction == Direction::kD2D) {
    return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "entry %zu is %s", i, Name(direction));
  }
  if (LocationFits(attr.dstLoc, move->dst) && LocationFits(attr.srcLoc, move->src)) return ACL_SUCCESS;
  return Refuse(Rule::kC2, ACL_ERROR_RT_PARAM_INVALID, "entry %zu is not where its attribute says", i);
}

// Entries run in any order, so two of them must not write the same bytes.
aclError CheckApart(const std::vector<Move>& moves, size_t* fail_index) {
  std::vector<size_t> order(moves.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return moves[a].dst.addr < moves[b].dst.addr; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Move &before = moves[order[i - 1]], &after = moves[order[i]];
    if (before.dst.addr + before.bytes <= after.dst.addr) continue;
    *fail_index = order[i];
    return Strict(Rule::kC10, ACL_ERROR_RT_PARAM_INVALID, "entries %zu and %zu write the same bytes", order[i - 1],
                  order[i]);
  }
  return ACL_SUCCESS;
}

// All entries are checked before the first is copied. fail_index: SIZE_MAX when no single entry is to blame.
aclError CheckBatch(Runtime& runtime, const BatchCall& call, std::vector<Move>* moves, size_t* fail_index) {
  *fail_index = SIZE_MAX;
  ACLEMU_TRY(CheckShape(call));
  ACLEMU_TRY(NeedContext());
  moves->resize(call.count);
  size_t attr = 0;
  for (size_t i = 0; i < call.count; ++i) {
    if (attr + 1 < call.attr_count && call.attr_indexes[attr + 1] == i) ++attr;
    *fail_index = i;
    Move& move = (*moves)[i];
    ACLEMU_TRY(CheckEntry(runtime, call, i, call.attrs[attr], &move));
    if (DirectionOf(move.dst, move.src) != DirectionOf(moves->front().dst, moves->front().src)) {
      return Fail(ACL_ERROR_RT_PARAM_INVALID, "entry %zu goes the other way", i);
    }
  }
  *fail_index = SIZE_MAX;
  return CheckApart(*moves, fail_index);
}

// Runs from the last entry to the first: who relies on an order finds out.
aclError Batch(Runtime& runtime, const BatchCall& call, size_t* fail_index) {
  std::vector<Move> moves;
  ACLEMU_TRY(CheckBatch(runtime, call, &moves, fail_index));
  *fail_index = SIZE_MAX;
  ACLEMU_TRY(CheckCapture(runtime));
  for (size_t i = moves.size(); i-- > 0;) {
    *fail_index = i;
    ACLEMU_TRY(CopyNow(moves[i].dst, moves[i].src, moves[i].bytes));
  }
  return ACL_SUCCESS;
}

aclError BatchAsync(Runtime& runtime, const BatchCall& call, size_t* fail_index, aclrtStream handle) {
  std::vector<Move> moves;
  ACLEMU_TRY(CheckBatch(runtime, call, &moves, fail_index));
  *fail_index = SIZE_MAX;
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
  bool pageable = false;
  for (size_t i = 0; i < moves.size(); ++i) {
    *fail_index = i;
    ACLEMU_TRY(CheckAligned(moves[i].dst, moves[i].src));
    if (!IsPageable(moves[i].dst, moves[i].src)) continue;
    ACLEMU_TRY(CheckPageable(ACL_MEMCPY_DEFAULT, moves[i].dst, moves[i].src, &pageable));
  }
  *fail_index = SIZE_MAX;
  if (pageable) ACLEMU_TRY(DrainForPageable(*stream));
  for (size_t i = moves.size(); i-- > 0;) {
    const Move& move = moves[i];
    *fail_index = i;
    ACLEMU_TRY(pageable ? CopyNow(move.dst, move.src, move.bytes)
                        : SubmitCopy(*stream, move.dst, move.src, move.bytes));
  }
  return ACL_SUCCESS;
}

// fail_index is the caller's and is written only on failure.
template <typename Body>
aclError WithFailIndex(size_t* fail_index, Body body) {
  if (fail_index == nullptr) return NullPointer("failIndex");
  size_t index = SIZE_MAX;
  aclError code = body(&index);
  if (code != ACL_SUCCESS) *fail_index = index;
  return code;
}

// ---- two dimensions ----

struct PlaneCall {
  void* dst;
  size_t dst_pitch;
  const void* src;
  size_t src_pitch;
  size_t width;
  size_t height;
  aclrtMemcpyKind kind;

  uint64_t span(size_t pitch) const { return static_cast<uint64_t>(height - 1) * pitch + width; }
};

aclError CheckPlane(Runtime& runtime, const PlaneCall& call, Rule kind_rule, Place* dst, Place* src) {
  if (call.dst == nullptr || call.src == nullptr) return NullPointer("dst or src");
  if (call.width == 0 || call.width > kMaxWidth || call.height == 0 || call.height > kMaxHeight ||
      call.width > call.dst_pitch || call.width > call.src_pitch) {
    return Fail(ACL_ERROR_INVALID_PARAM, "width %zu, height %zu, pitches %zu and %zu", call.width, call.height,
                call.dst_pitch, call.src_pitch);
  }
  // A whole plane is below 2^64 whatever the width, as long as the pitch is no more than a device holds.
  if (call.dst_pitch > (1ULL << 40) || call.src_pitch > (1ULL << 40)) {
    return Fail(ACL_ERROR_INVALID_PARAM, "pitches %zu and %zu", call.dst_pitch, call.src_pitch);
  }
  if (call.kind == ACL_MEMCPY_HOST_TO_HOST || static_cast<uint32_t>(call.kind) > ACL_MEMCPY_DEFAULT) {
    return Fail(ACL_ERROR_INVALID_PARAM, "kind %d", static_cast<int>(call.kind));
  }
  ACLEMU_TRY(NeedContext());
  *dst = runtime.ranges.Find(call.dst);
  *src = runtime.ranges.Find(call.src);
  if (dst->OnHost() && src->OnHost()) return Fail(ACL_ERROR_INVALID_PARAM, "both ends are host memory");
  ACLEMU_TRY(CheckInside(*src, "src", call.span(call.src_pitch)));
  ACLEMU_TRY(CheckInside(*dst, "dst", call.span(call.dst_pitch)));
  ACLEMU_TRY(CheckRoute(runtime, call.kind, *dst, *src, kind_rule));
  uintptr_t apart = dst->addr > src->addr ? dst->addr - src->addr : src->addr - dst->addr;
  if (apart >= (dst->addr > src->addr ? call.span(call.src_pitch) : call.span(call.dst_pitch))) return ACL_SUCCESS;
  return Strict(Rule::kC10, ACL_ERROR_RT_PARAM_INVALID, "src and dst overlap");
}

Place Moved(const Place& place, uint64_t bytes) {
  Place moved = place;
  moved.addr += bytes;
  moved.room -= bytes;
  return moved;
}

// One copy per row, or a single one where the rows touch.
template <typename Copy>
aclError EachRow(const PlaneCall& call, const Place& dst, const Place& src, Copy copy) {
  if (call.dst_pitch == call.width && call.src_pitch == call.width) {
    return copy(dst, src, static_cast<uint64_t>(call.width) * call.height);
  }
  for (size_t row = 0; row < call.height; ++row) {
    ACLEMU_TRY(copy(Moved(dst, row * call.dst_pitch), Moved(src, row * call.src_pitch), uint64_t{call.width}));
  }
  return ACL_SUCCESS;
}

aclError PlaneAsync(Runtime& runtime, const PlaneCall& call, aclrtStream handle) {
  Place dst, src;
  ACLEMU_TRY(CheckPlane(runtime, call, Rule::kC2, &dst, &src));
  std::shared_ptr<Stream> stream;
  ACLEMU_TRY(FindOwnStream(runtime, handle, &stream));
  ACLEMU_TRY(CheckAligned(dst, src));
  bool now = false;
  if (IsPageable(dst, src)) ACLEMU_TRY(CheckPageable(call.kind, dst, src, &now));
  if (!now) {
    return EachRow(call, dst, src, [&](const Place& to, const Place& from, uint64_t bytes) {
      return SubmitCopy(*stream, to, from, bytes);
    });
  }
  ACLEMU_TRY(DrainForPageable(*stream));
  return EachRow(call, dst, src, CopyNow);
}

}  // namespace

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpyBatch(void** dsts, size_t* dest_maxs, void** srcs, size_t* sizes, size_t count,
                             aclrtMemcpyBatchAttr* attrs, size_t* attr_indexes, size_t attr_count, size_t* fail_index) {
  const BatchCall call{dsts, dest_maxs, srcs, sizes, count, attrs, attr_indexes, attr_count};
  return Call(Api::aclrtMemcpyBatch, ArgsOf(call, nullptr, false), [&](Runtime& runtime) {
    return WithFailIndex(fail_index, [&](size_t* index) { return Batch(runtime, call, index); });
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpyBatchAsync(void** dsts, size_t* dest_maxs, void** srcs, size_t* sizes, size_t count,
                                  aclrtMemcpyBatchAttr* attrs, size_t* attr_indexes, size_t attr_count,
                                  size_t* fail_index, aclrtStream stream) {
  const BatchCall call{dsts, dest_maxs, srcs, sizes, count, attrs, attr_indexes, attr_count};
  return Call(Api::aclrtMemcpyBatchAsync, ArgsOf(call, stream, true), [&](Runtime& runtime) {
    return WithFailIndex(fail_index, [&](size_t* index) { return BatchAsync(runtime, call, index, stream); });
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpyBatchV2(void** dsts, size_t* dest_maxs, void** srcs, size_t* sizes, size_t count,
                               aclrtMemcpyBatchAttr* attrs, size_t* attr_indexes, size_t attr_count) {
  const BatchCall call{dsts, dest_maxs, srcs, sizes, count, attrs, attr_indexes, attr_count};
  return Call(Api::aclrtMemcpyBatchV2, ArgsOf(call, nullptr, false), [&](Runtime& runtime) {
    size_t index = SIZE_MAX;
    return Batch(runtime, call, &index);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpyBatchAsyncV2(void** dsts, size_t* dest_maxs, void** srcs, size_t* sizes, size_t count,
                                    aclrtMemcpyBatchAttr* attrs, size_t* attr_indexes, size_t attr_count,
                                    aclrtStream stream) {
  const BatchCall call{dsts, dest_maxs, srcs, sizes, count, attrs, attr_indexes, attr_count};
  return Call(Api::aclrtMemcpyBatchAsyncV2, ArgsOf(call, stream, true), [&](Runtime& runtime) {
    size_t index = SIZE_MAX;
    return BatchAsync(runtime, call, &index, stream);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpy2d(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width, size_t height,
                          aclrtMemcpyKind kind) {
  return Call(Api::aclrtMemcpy2d, {.a = dst, .b = src, .bytes = width * height}, [&](Runtime& runtime) {
    PlaneCall call{dst, dst_pitch, src, src_pitch, width, height, kind};
    Place to, from;
    ACLEMU_TRY(CheckPlane(runtime, call, Rule::kC1, &to, &from));
    ACLEMU_TRY(CheckCapture(runtime));
    return EachRow(call, to, from, CopyNow);
  });
}

ACLEMU_ENTRY(aclError)
aclemu_impl_aclrtMemcpy2dAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                               size_t height, aclrtMemcpyKind kind, aclrtStream stream) {
  const CallArgs args{.a = dst, .b = src, .bytes = width * height, .stream = stream, .has_stream = true};
  return Call(Api::aclrtMemcpy2dAsync, args, [&](Runtime& runtime) {
    return PlaneAsync(runtime, {dst, dst_pitch, src, src_pitch, width, height, kind}, stream);
  });
}

}  // namespace aclemu
