// All that kernels use of it is in metal_stdlib.
#pragma once
