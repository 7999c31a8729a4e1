#include "tests/soak/growth.h"

#include <algorithm>
#include <cstddef>

namespace failback {
namespace {

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Growth GrowthOf(const std::vector<MemorySample>& samples) {
  std::vector<double> slopes;
  std::vector<double> sizes;
  for (size_t i = samples.size() / 3; i < samples.size(); ++i) {
    sizes.push_back(samples[i].kib);
    for (size_t k = i + 1; k < samples.size(); ++k) {
      const double time = samples[k].seconds - samples[i].seconds;
      if (time > 0) slopes.push_back((samples[k].kib - samples[i].kib) / time);
    }
  }
  Growth growth;
  growth.allowed_kib = 2048 + MedianOf(std::move(sizes)) / 100;
  if (slopes.empty()) return growth;
  growth.kib_per_second = MedianOf(std::move(slopes));
  growth.kib =
      growth.kib_per_second * (samples.back().seconds - samples[samples.size() / 3].seconds);
  return growth;
}

}  // namespace failback
