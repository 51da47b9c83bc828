// Directives of kernels on matrix units. They must come first in the source.

enable f16;
enable wgpu_cooperative_matrix;
