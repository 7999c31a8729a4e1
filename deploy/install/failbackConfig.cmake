# find_package(failback) gives failback::failback, the static library, and failback::failback_shared:
# `#include "agent/agent.h"`.
get_filename_component(_failback_libdir "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_failback_prefix "${_failback_libdir}/.." ABSOLUTE)
if(NOT TARGET failback::failback)
  add_library(failback::failback STATIC IMPORTED)
  set_target_properties(failback::failback PROPERTIES
    IMPORTED_LOCATION "${_failback_libdir}/libfailback.a")
  add_library(failback::failback_shared SHARED IMPORTED)
  set_target_properties(failback::failback_shared PROPERTIES
    IMPORTED_LOCATION "${_failback_libdir}/libfailback.so.@VERSION@"
    IMPORTED_SONAME "libfailback.so.@API@")
  set_target_properties(failback::failback failback::failback_shared PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_failback_prefix}/include/failback"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_LINK_LIBRARIES "@LINK_FLAGS@")
endif()
unset(_failback_libdir)
unset(_failback_prefix)
