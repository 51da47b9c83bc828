// Directives of kernels on matrix units; must come first.

enable f16;
enable wgpu_cooperative_matrix;
