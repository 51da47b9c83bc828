// What kernels on units for matrices are written in; this comes before all else.

enable f16;
enable wgpu_cooperative_matrix;
