// What stands behind the C handle of an engine, for the parts of the library that use engines.
#pragma once

#include "io/engine.h"
#include "zinf.h"

extern "C" struct zinf_io {
    zinf::Engine engine;
};

namespace zinf {

// Whether the request makes sense.
bool is_sound(const zinf_io_request& request, int32_t channel);

}  // namespace zinf
