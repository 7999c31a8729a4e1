// Which instances a Selector means.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_SELECTOR_H_
#define FAILBACK_REGISTRY_MODEL_SELECTOR_H_

#include <string>

#include "registry/model/messages.h"

namespace failback {

// What clients are to make of an instance: its status explicit, and UNHEALTHY while an operator has
// taken it out of rotation.
registry::v1::HealthStatus EffectiveStatus(const ServiceInstance& instance);

// All that is set in `selector` holds for `instance`. An empty namespace on either side means
// `default`; an empty service means any; an instance's status is the effective one.
bool SelectorMatches(const Selector& selector, const ServiceInstance& instance);

// Whether the selector asks for more than a service: for states, zones or metadata.
bool HasFilter(const Selector& selector);

// The same bytes for selectors that mean the same: sorted, without repetitions, the namespace
// filled in.
std::string CanonicalSelector(const Selector& selector);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_SELECTOR_H_
