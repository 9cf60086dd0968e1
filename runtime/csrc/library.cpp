// What the library says about itself.
#include "zinf.h"

#include <cstring>

#ifndef ZINF_BUILD_ID
#define ZINF_BUILD_ID "unknown"
#endif

extern "C" {

int32_t zinf_abi_version(void) { return ZINF_ABI_VERSION; }

const char* zinf_build_id(void) { return ZINF_BUILD_ID; }

const char* zinf_compiler(void) {
#ifdef __clang__
    return "clang " __clang_version__;
#else
    return "g++ " __VERSION__;
#endif
}

const char* zinf_strerror(int32_t code) {
    if (code >= 0) return "no error";
    thread_local char text[128];
    return strerror_r(-code, text, sizeof text);
}
}
