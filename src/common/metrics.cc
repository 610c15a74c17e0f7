// Metrics on prometheus-cpp's registry.
#include "common/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace mooncake {
namespace {

class CounterImpl final : public Counter {
 public:
  explicit CounterImpl(prometheus::Counter& counter) : counter_(counter) {}
  void Add(uint64_t n) override { counter_.Increment(static_cast<double>(n)); }
  uint64_t Value() const override { return static_cast<uint64_t>(counter_.Value()); }

 private:
  prometheus::Counter& counter_;
};

class GaugeImpl final : public Gauge {
 public:
  explicit GaugeImpl(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_.Set(value); }

 private:
  prometheus::Gauge& gauge_;
};

}  // namespace

struct MetricRegistry::Impl {
  using Key = std::pair<std::string, MetricLabels>;
  std::mutex mutex;
  prometheus::Registry registry;
  std::map<Key, std::unique_ptr<CounterImpl>> counters;
  std::map<Key, std::unique_ptr<GaugeImpl>> gauges;
};

MetricRegistry::MetricRegistry() : impl_(std::make_unique<Impl>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::GetCounter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  std::lock_guard lock(impl_->mutex);
  auto& slot = impl_->counters[{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
    slot = std::make_unique<CounterImpl>(family.Add(labels));
  }
  return *slot;
}

Gauge& MetricRegistry::GetGauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  std::lock_guard lock(impl_->mutex);
  auto& slot = impl_->gauges[{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry);
    slot = std::make_unique<GaugeImpl>(family.Add(labels));
  }
  return *slot;
}

std::string MetricRegistry::Serialize() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace mooncake
