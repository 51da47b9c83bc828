//! Without a GPU: the kernels are valid WGSL, and their rows say of them what is so.

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, StorageAccess};

use super::super::kernels::{ALL, Access, Kernel};

fn check(kernel: &Kernel) {
    let name = kernel.name;
    let module = naga::front::wgsl::parse_str(kernel.source)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(kernel.source, name)));
    let info =
        Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32).validate(&module);
    info.unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(kernel.source, name)));
    assert_eq!(module.entry_points.len(), 1, "{name}");
    assert_eq!(module.entry_points[0].name, "main", "{name}");

    let mut bindings: Vec<_> = module
        .global_variables
        .iter()
        .filter_map(|(_, variable)| variable.binding.as_ref().map(|binding| (binding, variable)))
        .collect();
    bindings.sort_by_key(|(binding, _)| binding.binding);
    let found: Vec<_> =
        bindings.iter().map(|(binding, variable)| (binding.group, binding.binding, variable.space)).collect();
    let storage = kernel.storage.iter().map(|access| AddressSpace::Storage {
        access: match access {
            Access::Read => StorageAccess::LOAD,
            Access::Write => StorageAccess::LOAD | StorageAccess::STORE,
        },
    });
    let expected: Vec<_> = std::iter::once(AddressSpace::Uniform)
        .chain(storage)
        .zip(0..)
        .map(|(space, i)| (0, i, space))
        .collect();
    assert_eq!(found, expected, "bindings of {name}");
    let params = &module.types[bindings[0].1.ty].inner;
    let naga::TypeInner::Struct { span, .. } = params else { panic!("{name}: Params is no struct") };
    assert_eq!(*span as usize, kernel.params * 4, "bytes of Params of {name}");
}

#[test]
fn kernels_are_what_their_rows_say() {
    assert!(!ALL.is_empty());
    ALL.iter().for_each(|kernel| check(kernel));
}

/// Names of the files in `kernels/` or below, in order.
fn files(below: &str) -> Vec<String> {
    let folder = format!("{}/src/engine/gpu/kernels/{below}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut names: Vec<String> = files.map(|file| file.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every file is a kernel or a part of one, and says what its formula and its twin are.
#[test]
fn files_are_kernels() {
    let mut names: Vec<String> = ALL.iter().map(|kernel| format!("{}.wgsl", kernel.name)).collect();
    names.sort();
    assert_eq!(files(""), names);
    let parts: std::collections::BTreeSet<String> =
        ALL.iter().flat_map(|kernel| kernel.parts).map(|name| format!("{name}.wgsl")).collect();
    assert!(files("parts").iter().eq(&parts), "a part that no kernel has");
    for kernel in ALL {
        assert!(kernel.source.starts_with("// "), "{} has no header", kernel.name);
        assert!(kernel.source.contains("CPU twin: `"), "{} names no twin", kernel.name);
    }
}
