// The two places where descriptors of peers come from: the peers themselves, or a metadata server.
#pragma once

#include "common/executor.h"
#include "transfer_engine/metadata/metadata_store.h"
#include "transfer_engine/peer_links.h"
#include "transfer_engine/segment_cache.h"

namespace mooncake {

// Names are control endpoints: "host:port".
class PeerSegments final : public SegmentSource {
 public:
  explicit PeerSegments(PeerLinks& links) : links_(links) {}
  void Fetch(const std::string& name, SegmentPtr known, SegmentCompletion done) override;

 private:
  PeerLinks& links_;
};

// Names are whatever their owners published. Questions are asked on `workers`.
class PublishedSegments final : public SegmentSource {
 public:
  PublishedSegments(MetadataStore& store, Executor& workers) : store_(store), workers_(workers) {}
  void Fetch(const std::string& name, SegmentPtr known, SegmentCompletion done) override;

 private:
  MetadataStore& store_;
  Executor& workers_;
};

}  // namespace mooncake
