// What this CPU can do. Found when the library is loaded: it is built without -march, and every
// file that needs more says so itself.
#pragma once

namespace slipstream {

// The instruction sets that products and attention are written for, the best one last.
enum class Isa { kNone = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kAmx = 4 };

// Returns the best one here that the library is built for. Asks the kernel for the right to use AMX tiles, once.
Isa best_isa();

// The one in use: the best one, unless `use_isa` asked for a lesser one.
Isa current_isa();

// Uses `isa`, or the best one if this CPU lacks it. Packed weights fit all of them.
void use_isa(Isa isa);

}  // namespace slipstream
