//! Tests without a GPU: the kernels are valid WGSL, and the rows of the table describe them correctly.

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, StorageAccess};

use super::super::kernels::{ALL, Access, Kernel};
use super::super::params::Word;
use crate::{diloco, engine, model};

/// Returns the capabilities that `kernel` may use: those of every device, and for kernels on matrix units a few more.
fn capabilities(kernel: &Kernel) -> Capabilities {
    let any = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let matrices = Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
    if kernel.parts.contains(&"matrices") { any | matrices } else { any }
}

fn check(kernel: &Kernel) {
    let name = kernel.name;
    let module = naga::front::wgsl::parse_str(kernel.source)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(kernel.source, name)));
    let info = Validator::new(ValidationFlags::all(), capabilities(kernel)).validate(&module);
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
    assert_eq!(fields(&module, bindings[0].1.ty), kernel.fields, "Params of {name}");
}

/// Returns the fields of the struct `ty`. Asserts that they are 32-bit words without gaps.
fn fields<'a>(module: &'a naga::Module, ty: naga::Handle<naga::Type>) -> Vec<(&'a str, Word)> {
    let naga::TypeInner::Struct { members, span } = &module.types[ty].inner else {
        panic!("Params is no struct");
    };
    assert_eq!(*span as usize, members.len() * 4, "bytes of Params");
    let field = |member: &'a naga::StructMember| {
        let word = match module.types[member.ty].inner {
            naga::TypeInner::Scalar(naga::Scalar::U32) => Word::U32,
            naga::TypeInner::Scalar(naga::Scalar::F32) => Word::F32,
            ref other => panic!("{member:?} is {other:?}"),
        };
        (member.name.as_deref().expect("members have names"), word)
    };
    members.iter().map(field).collect()
}

#[test]
fn kernels_are_what_their_rows_say() {
    assert!(!ALL.is_empty());
    ALL.iter().for_each(|kernel| check(kernel));
}

/// Returns the sorted names of the files in the folder `kernels/` or in its subfolder `below`.
fn files(below: &str) -> Vec<String> {
    let folder = format!("{}/src/engine/gpu/kernels/{below}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut names: Vec<String> = files.map(|file| file.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Goal: every file is a kernel or a shared part of one, and begins with a comment.
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
    }
}

/// Goal: conditions have no parentheses around them.
#[test]
fn conditions_are_bare() {
    for kernel in ALL {
        for line in kernel.source.lines() {
            let Some((_, condition)) = line.split_once("if (") else { continue };
            let mut open = 1;
            let closed = condition.find(|c| {
                open += i32::from(c == '(') - i32::from(c == ')');
                open == 0
            });
            let rest = closed.map(|at| &condition[at..]);
            assert_ne!(rest, Some(") {"), "{}: {line}", kernel.name);
        }
    }
}

/// Defines the table of CPU twins: functions that compute the same as each kernel.
macro_rules! twins {
    ($($kernel:literal: $($($segment:ident)::+),+;)*) => {
        /// For each kernel, the paths of the twins that its header must name. A path that does not exist does not
        /// compile.
        const TWINS: &[(&str, &[&str])] = &[$(($kernel, &[$(path({
            let _ = $($segment)::+;
            concat!($("::", stringify!($segment)),+)
        })),+])),*];
    };
}

const fn path(joined: &'static str) -> &'static str {
    joined.split_at(2).1
}

twins! {
    "matmul_register": model::ops::linear, model::ops::linear_backward;
    "matmul_tile": model::ops::linear, model::ops::linear_backward;
    "matmul_matrix": model::ops::linear, model::ops::linear_backward;
    "matmul_sum": model::ops::linear, model::ops::linear_backward;
    "halve": half::f16::from_f32;
    "clear": model::ops::embed_backward;
    "embed": model::ops::embed;
    "embed_grad": model::ops::embed_backward;
    "norm": model::ops::norm;
    "norm_grad": model::ops::norm_backward;
    "column_sum": model::ops::norm_backward;
    "rotary": model::ops::rotate;
    "attention": model::ops::attention;
    "attention_dots": model::ops::attention_backward;
    "attention_grad_q": model::ops::attention_backward;
    "attention_grad_kv": model::ops::attention_backward;
    "attention_matrix": model::ops::attention;
    "attention_matrix_grad_q": model::ops::attention_backward;
    "attention_matrix_grad_kv": model::ops::attention_backward;
    "swiglu": model::ops::swiglu;
    "swiglu_grad": model::ops::swiglu_backward;
    "route": model::ops::route;
    "expert_count": model::ops::seen, model::ops::balance_slopes;
    "expert": model::ops::swiglu;
    "expert_grad": model::ops::swiglu_backward;
    "route_grad": model::ops::route_backward;
    "cross_entropy": model::ops::cross_entropy;
    "squares": engine::cpu::kernels::squares;
    "finish": model::Adjust::new;
    "adamw": model::adjust;
    "adamw_halves": model::moments::adjust_halves;
    "muon_momentum": model::Muon::step;
    "muon_scale": model::muon_unit;
    "muon_polynomial": engine::cpu::kernels::polynomial;
    "muon_apply": model::Muon::step;
    "delta_max": diloco::Codec::encode, diloco::Replica::encode;
    "delta_code": diloco::Codec::encode;
    "decode_add": diloco::Codec::decode, diloco::binary16::nearest;
    "digest": diloco::binary16::digest;
    "rebase": diloco::Replica::apply;
}

/// Returns the paths after "CPU twin:" in a kernel's header, up to the end of the line.
fn named_twins(kernel: &Kernel) -> Vec<&str> {
    let (_, sentence) = kernel.source.split_once("// CPU twin: ").expect("a header names a twin");
    let line = sentence.lines().next().unwrap_or_default();
    line.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect()
}

/// Goal: each header names exactly the twins in the table above.
#[test]
fn twins_exist() {
    assert!(TWINS.iter().map(|row| row.0).eq(ALL.iter().map(|kernel| kernel.name)), "a row for each kernel");
    for (kernel, (_, twins)) in ALL.iter().zip(TWINS) {
        assert_eq!(named_twins(kernel), *twins, "{}", kernel.name);
    }
}
