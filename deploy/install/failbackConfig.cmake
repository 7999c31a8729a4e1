# find_package(failback) gives the target failback::failback: `#include "agent/agent.h"`.
get_filename_component(_failback_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET failback::failback)
  add_library(failback::failback STATIC IMPORTED)
  set_target_properties(failback::failback PROPERTIES
    IMPORTED_LOCATION "${_failback_prefix}/lib/libfailback.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_failback_prefix}/include/failback"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_LINK_LIBRARIES "@LINK_FLAGS@")
endif()
unset(_failback_prefix)
