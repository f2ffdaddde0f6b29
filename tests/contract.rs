//! What WGSL, Rust, tests and docs must agree on, read from their texts: one name everywhere, one layout, one direction.
#![cfg(not(target_arch = "wasm32"))] // reads the source tree

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use lora_webgpu::Profile;
use lora_webgpu::kernels::{Access, Kernel, all};
use naga::back::pipeline_constants::process_overrides;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ScalarKind, StorageAccess, TypeInner};

#[path = "kernels/chosen.rs"]
mod chosen;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(root(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// All files below a folder, as paths from the crate's root.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root(folder)).unwrap_or_else(|e| panic!("{folder}: {e}")).map(Result::unwrap) {
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        match entry.path().is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// `group/kernel` of each file of a folder, without `mod.rs`.
fn names(folder: &str, extension: &str) -> BTreeSet<String> {
    let name = |path: &String| Some(path.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(extension)?.to_string());
    files(folder).iter().filter_map(name).filter(|name| !name.ends_with("mod")).collect()
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').collect()
}

#[test]
fn a_kernel_has_one_name_everywhere() {
    let shaders = names("shaders", ".wgsl");
    assert!(!shaders.is_empty());
    // Layouts of the base's weight, and what shaders share, have no Rust file of their own.
    let used: BTreeSet<String> = all().flat_map(files_of).collect();
    assert_eq!(used, shaders, "kernels::all() uses every shader");
    let with_rust: BTreeSet<String> = all().map(|kernel| chosen::product(kernel).to_string()).collect();
    assert_eq!(names("src/kernels", ".rs"), with_rust, "each product has its Rust file, and no file is without one");
    let listed: BTreeSet<&str> = all().map(|kernel| kernel.name).collect();
    assert_eq!(all().count(), listed.len(), "kernels::all() lists none twice");
    let (tests, docs) = (text("tests/kernels.rs"), text("docs/numerics.md"));
    for name in with_rust.iter().chain(shaders.iter().filter(|name| name.starts_with("base/weight_"))) {
        let (group, kernel) = name.split_once('/').unwrap();
        let function = format!("pub fn {kernel}(");
        assert!(text(&format!("tests/reference/{group}.rs")).contains(&function), "{name} has no reference");
        let tested = match kernel.strip_prefix("weight_") {
            Some("half") => "linear_half", // not all products read it
            layout => layout.unwrap_or(kernel),
        };
        assert!(words(&tests).contains(tested), "{name} has no tests");
    }
    for name in &listed {
        assert!(docs.contains(&format!("| `{name}` |")), "{name} is not in docs/numerics.md: write it again");
    }
    assert_eq!(docs.matches("\n| `").count(), listed.len(), "docs/numerics.md has kernels that are no more");
}

/// The files whose texts, joined, are the kernel's: of `base/linear_wide_f16` they are `base/weight_f16`, `base/wide`, which others
/// share, and `base/linear_wide`.
fn files_of(kernel: &Kernel) -> Vec<String> {
    let shaders = names("shaders", ".wgsl").into_iter().map(|name| (text(&format!("shaders/{name}.wgsl")), name));
    let shaders: BTreeMap<String, String> = shaders.collect();
    let files: Vec<String> = kernel.source.iter().map(|part| shaders[*part].clone()).collect();
    let layout = files[0].strip_prefix("base/weight_").map(|layout| format!("_{layout}")).unwrap_or_default();
    assert_eq!(kernel.name, format!("{}{layout}", files.last().unwrap()));
    files
}

/// Its Rust file.
fn rust_of(kernel: &Kernel) -> String {
    text(&format!("src/kernels/{}.rs", chosen::product(kernel)))
}

/// That of its `Params`, which can be those of another kernel of the group.
fn rust_of_params(kernel: &Kernel) -> String {
    let own = rust_of(kernel);
    match own.split_once("::{Params") {
        Some((before, _)) => {
            let other = before.rsplit("::").next().unwrap();
            text(&format!("src/kernels/{}/{other}.rs", kernel.name.split('/').next().unwrap()))
        }
        None => own,
    }
}

fn parse(kernel: &Kernel) -> (Module, ModuleInfo) {
    let source = kernel.text();
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string_with_path(&source, kernel.name)));
    let core = Capabilities::SHADER_FLOAT16_IN_FLOAT32; // unpack2x16float
    let capabilities = core | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all())
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string_with_path(&source, kernel.name)));
    (module, info)
}

/// Whether `^`, `|` or `&` stands beside arithmetic without parentheses: naga takes `a % b ^ c`, browsers do not.
fn mixes_operators(text: &str) -> bool {
    let text: String = text.lines().map(|line| format!("{}\n", line.split("//").next().unwrap())).collect();
    let mut open = vec![[false; 2]]; // of each bracket, since the last separator: bitwise, arithmetic
    let mut after_operand = false;
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        let long = ["&&", "||", "<<", ">>", "==", "!=", "<=", ">="].into_iter().find(|op| rest.starts_with(op));
        let assigns = rest[c.len_utf8()..].starts_with('=') && "+-*/%^|&".contains(c);
        match c {
            '(' | '[' => open.push([false; 2]),
            ')' | ']' => drop(open.pop()),
            ',' | ';' | '{' | '}' | '=' => *open.last_mut().unwrap() = [false; 2],
            _ if assigns || matches!(long, Some("&&" | "||")) => *open.last_mut().unwrap() = [false; 2],
            '^' | '|' | '&' if after_operand => open.last_mut().unwrap()[0] = true,
            '+' | '-' | '*' | '/' | '%' if after_operand => open.last_mut().unwrap()[1] = true,
            _ if matches!(long, Some("<<" | ">>")) => open.last_mut().unwrap()[1] = true,
            _ => {}
        }
        if open.last() == Some(&[true; 2]) {
            return true;
        }
        if !c.is_whitespace() {
            after_operand = c.is_alphanumeric() || "_)].".contains(c);
        }
        rest = &rest[long.map_or(c.len_utf8() + usize::from(assigns), str::len)..];
    }
    false
}

#[test]
fn operators_have_the_parentheses_that_browsers_want() {
    for (text, mixed) in [
        ("let a = b % c ^ 2;", true),
        ("a[(b ^ c) * 4 + d] = e;", false),
        ("let a = b ^ (c % 2);", false),
        ("f(&a, b + c);", false),
        ("v ^= v >> vec4u(16);", false),
        ("a = b | c << 8;", true),
        ("a = b > 0 && c + 1 < d;", false),
    ] {
        assert_eq!(mixes_operators(text), mixed, "{text}");
    }
    for kernel in all() {
        assert!(!mixes_operators(&kernel.text()), "{}", kernel.name);
    }
}

/// Variables without a value, in blocks within a function, that are added to: Chromium on SwiftShader gives them zeros in the
/// first round of a loop alone.
fn counts_on_zeros(text: &str) -> Vec<&str> {
    let inner = text.lines().filter(|line| line.starts_with("        "));
    let declared = inner.filter_map(|line| line.trim_start().strip_prefix("var ")?.split_once(": "));
    let unset = declared.filter(|(_, rest)| !rest.split("//").next().unwrap().contains('='));
    let added_to = |line: &str, name: &str| {
        let rest = line.trim_start().strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['[', ' ']) && rest.split(" = ").next().unwrap().contains("= "))
    };
    unset.map(|(name, _)| name).filter(|name| text.lines().any(|line| added_to(line, name))).collect()
}

#[test]
fn variables_in_loops_begin_with_a_value() {
    let inside = |line: &str| format!("fn main() {{\n    for (;;) {{\n        var sum{line}\n    }}\n}}\n");
    for (text, wrong) in [
        (": f32;\n        sum += 1;", true),
        (": array<vec4f, 4>; // [4]\n            sum[i] += a[i] * b;", true),
        (": array<vec4f, 4>;\n            sum[i] = a[i] * b;", false),
        (" = array<vec4f, 4>();\n            sum[i] += b;", false),
        (": f32;\n        summary += 1;", false),
    ] {
        assert_eq!(!counts_on_zeros(&inside(text)).is_empty(), wrong, "{text}");
    }
    for kernel in all() {
        assert_eq!(counts_on_zeros(&kernel.text()), [""; 0], "{}", kernel.name);
    }
}

/// Name and type of each field of `struct Params` in the kernel's Rust file.
fn rust_params(rust: &str) -> Vec<(String, String)> {
    let body = rust.split_once("struct Params {").expect("a struct Params").1.split_once('}').unwrap().0;
    let field = |line: &str| {
        let (name, kind) = line.split("//").next().unwrap().trim().trim_end_matches(',').split_once(": ")?;
        Some((name.to_string(), kind.to_string()))
    };
    body.lines().filter_map(field).collect()
}

#[test]
fn the_params_struct_is_laid_out_alike_in_rust_and_wgsl() {
    for kernel in all() {
        let (module, _) = parse(kernel);
        let rust = rust_params(&rust_of_params(kernel));
        let (_, params) = module.global_variables.iter().find(|(_, v)| v.space == AddressSpace::Uniform).unwrap();
        let TypeInner::Struct { members, span } = &module.types[params.ty].inner else {
            panic!("{}: params is no struct", kernel.name)
        };
        let wgsl: Vec<(String, String, u32)> = members
            .iter()
            .map(|member| {
                let kind = match module.types[member.ty].inner {
                    TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Uint, width: 4 }) => "u32",
                    TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Sint, width: 4 }) => "i32",
                    TypeInner::Scalar(naga::Scalar { kind: ScalarKind::Float, width: 4 }) => "f32",
                    ref other => panic!("{}: {:?} is {other:?}, not u32, i32 or f32", kernel.name, member.name),
                };
                (member.name.clone().unwrap(), kind.to_string(), member.offset)
            })
            .collect();
        // Fields of four bytes each: `repr(C)` puts them one after another.
        let rust: Vec<_> = (0..).step_by(4).zip(rust).map(|(offset, (name, kind))| (name, kind, offset)).collect();
        assert_eq!(wgsl, rust, "{}", kernel.name);
        assert_eq!(*span as usize, kernel.params_size, "{}", kernel.name);
    }
}

/// What a runtime-sized array is of, f16 being what packed weights can be read as; None for a struct.
fn elements(module: &Module, array: naga::Handle<naga::Type>) -> Option<ScalarKind> {
    let TypeInner::Array { base, size: naga::ArraySize::Dynamic, .. } = module.types[array].inner else { return None };
    match module.types[base].inner {
        TypeInner::Vector { scalar: naga::Scalar { width: 2, .. }, .. } => Some(ScalarKind::Uint),
        TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => Some(scalar.kind),
        ref other => panic!("an array of {other:?}"),
    }
}

#[test]
fn bindings_agree_in_order_name_access_and_elements() {
    for kernel in all() {
        let (module, _) = parse(kernel);
        let bound: BTreeMap<u32, (&str, AddressSpace)> = module
            .global_variables
            .iter()
            .filter_map(|(_, variable)| {
                let binding = variable.binding?;
                assert_eq!(binding.group, 0, "{}", kernel.name);
                Some((binding.binding, (variable.name.as_deref().unwrap(), variable.space)))
            })
            .collect();
        let storage = |access| AddressSpace::Storage { access };
        let read_write = StorageAccess::LOAD | StorageAccess::STORE;
        let expected: BTreeMap<u32, (&str, AddressSpace)> = kernel
            .buffers
            .iter()
            .map(|(name, access)| match access {
                Access::Read | Access::ReadInt | Access::ReadWords => (*name, storage(StorageAccess::LOAD)),
                Access::Write | Access::WriteInt | Access::WriteWords => (*name, storage(read_write)),
            })
            .chain([("params", AddressSpace::Uniform)])
            .enumerate()
            .map(|(i, binding)| (i as u32, binding))
            .collect();
        assert_eq!(bound, expected, "{}", kernel.name);
        assert!(kernel.buffers.len() <= 8, "{}: WebGPU promises 8 storage buffers", kernel.name);
        assert!(kernel.buffers.iter().any(|(_, access)| access.is_write()), "{} writes nothing", kernel.name);
        for (_, variable) in module.global_variables.iter() {
            let name = variable.name.as_deref().unwrap();
            let Some((_, access)) = kernel.buffers.iter().find(|(buffer, _)| *buffer == name) else { continue };
            let expected = match access {
                Access::Read | Access::Write => ScalarKind::Float,
                Access::ReadInt | Access::WriteInt => ScalarKind::Sint,
                Access::ReadWords | Access::WriteWords => ScalarKind::Uint,
            };
            if let Some(found) = elements(&module, variable.ty) {
                assert_eq!(found, expected, "{}: elements of {name}", kernel.name);
            }
        }
        // House rule 3: the shape stands beside every array.
        for line in kernel.text().lines().filter(|line| line.contains("var<storage") && line.contains("array<")) {
            assert!(line.contains("; // ["), "{}: no shape beside «{line}»", kernel.name);
        }
    }
}

/// The u32 that `const NAME` or `override NAME` has in the shader.
fn declared(kernel: &Kernel, keyword: &str) -> BTreeMap<String, u32> {
    let parse = |line: &str| {
        let (name, value) = line.strip_prefix(keyword)?.trim().split_once(": u32 = ")?;
        Some((name.to_string(), value.split(';').next()?.parse().ok()?))
    };
    kernel.text().lines().filter_map(parse).collect()
}

#[test]
fn constants_are_the_same_numbers_in_rust_and_wgsl() {
    // How Rust counts workgroups that take as many elements as there are.
    const RUST_ALONE: &[(&str, &str)] = &[
        ("base/add_parts", "LEAST"),
        ("lora/find_non_finite", "ELEMENTS"),
        ("optim/grad_norm", "ELEMENTS"),
        ("lora/grad_a_tiled", "ENOUGH"),
        ("lora/grad_b_tiled", "ENOUGH"),
        ("lora/grad_b_dh", "ENOUGH"),
        ("lora/grad_b_dh", "MOST"),
    ];
    for kernel in all() {
        let name = kernel.name;
        let (module, _) = parse(kernel);
        let overrides = declared(kernel, "override");
        // An array's length that is an expression of overrides makes one without a name.
        let named = module.overrides.iter().filter(|(_, o)| o.name.is_some()).count();
        assert_eq!(overrides.len(), named, "{name}: overrides are u32 with a default");
        let hardware = kernel.constants.iter().map(|(name, hardware, _)| (name.to_string(), *hardware)).collect();
        // Each layout may have its own; the defaults are those of f32.
        let values = |map: BTreeMap<String, u32>| match kernel.source.len() == 1 || name.ends_with("_f32") {
            true => map,
            false => map.into_keys().map(|name| (name, 0)).collect(),
        };
        assert_eq!(
            values(overrides),
            values(hardware),
            "{name}: overrides and their defaults are Kernel.constants for hardware"
        );

        let constants = declared(kernel, "const");
        let rust = rust_of(kernel);
        for line in rust.lines().filter_map(|line| line.strip_prefix("const ")) {
            let (constant, value) = line.trim_end_matches(';').split_once(": usize = ").expect(line);
            if !RUST_ALONE.contains(&(name, constant)) {
                assert_eq!(constants.get(constant), value.parse().ok().as_ref(), "{name}: {constant}");
            }
        }
    }
}

#[test]
fn workgroups_fit_every_device_on_hardware_and_software() {
    for kernel in all() {
        let (module, info) = parse(kernel);
        for hardware in [true, false] {
            let value = |(name, h, s): &(&str, u32, u32)| (name.to_string(), f64::from(if hardware { *h } else { *s }));
            let constants = kernel.constants.iter().map(value).collect();
            let (module, _) = process_overrides(&module, &info, None, &constants).unwrap();
            assert_eq!(module.entry_points.len(), 1, "{}", kernel.name);
            let main = &module.entry_points[0];
            assert_eq!(main.name, "main", "{}", kernel.name);
            let invocations: u32 = main.workgroup_size.iter().product();
            assert!(invocations <= 256, "{}: {invocations} invocations", kernel.name);
            let shared = |variable: &naga::GlobalVariable| match variable.space {
                AddressSpace::WorkGroup => module.types[variable.ty].inner.size(module.to_ctx()),
                _ => 0,
            };
            let memory: u32 = module.global_variables.iter().map(|(_, variable)| shared(variable)).sum();
            assert!(memory <= 16_384, "{}: {memory} bytes of workgroup memory", kernel.name);
        }
    }
}

#[test]
fn shared_structs_are_the_same_in_every_shader() {
    let state = |kernel: &Kernel| Some(kernel.text().split_once("struct State {")?.1.split_once('}')?.0.to_string());
    let states: BTreeSet<String> = all().filter_map(state).collect();
    assert_eq!(states.len(), 1);
}

/// What a module may use, itself apart.
const LAYERS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("gpu", &["error"]),
    ("kernels", &["gpu", "error"]),
    ("base", &["kernels", "gpu", "error"]),
    ("nn", &["kernels", "gpu", "error"]),
    ("lora", &["base", "nn", "kernels", "gpu", "error"]),
    ("loss", &["base", "nn", "kernels", "gpu", "error"]),
    ("io", &["base", "nn", "kernels", "gpu", "error"]),
    ("optim", &["lora", "base", "nn", "kernels", "gpu", "error"]), // the parameters of layers
    ("model", &["lora", "loss", "optim", "io", "base", "nn", "kernels", "gpu", "error"]),
    ("train", &["model", "lora", "loss", "optim", "io", "base", "nn", "kernels", "gpu", "error"]),
    ("web", &["train", "model", "lora", "loss", "optim", "io", "base", "nn", "kernels", "gpu", "error"]),
];

/// First names after each `crate::`, comments left out.
fn uses(source: &str) -> Vec<String> {
    let code: String = source.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    let first = |path: &str| path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.push(first(rest));
            continue;
        };
        let (mut depth, mut item) = (1, String::new());
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 || (depth == 1 && c == ',') {
                found.push(first(&item));
                item.clear();
            } else {
                item.push(c);
            }
            if depth == 0 {
                break;
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

#[test]
fn dependencies_point_one_way() {
    assert_eq!(
        uses("use crate::gpu::{A, b};\nuse crate::{\n    lora::{X, y}, // crate::no\n    Gpu,\n};"),
        ["gpu", "lora", "Gpu"]
    );
    for path in files("src").iter().filter(|path| path.ends_with(".rs") && *path != "src/lib.rs") {
        let module = path.split('/').nth(1).unwrap().trim_end_matches(".rs");
        let (_, allowed) =
            LAYERS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{path}: which layer?"));
        for used in uses(&text(path)) {
            // The crate's own re-exports hide where they come from: for the façade only.
            let root = module == "web" && (used == "Result" || used.starts_with(char::is_uppercase));
            let fine = used == module || allowed.contains(&used.as_str()) || root;
            assert!(fine, "{path} uses crate::{used}, which is not below {module}");
        }
    }
}

/// The page that checks a device runs what the package would run there.
#[test]
fn what_devices_are_given_is_what_the_self_check_runs_on_them() {
    // The kernels of arms of a `match` on the profile; for hardware and many tokens, those that others stand back for.
    let mut hardware = BTreeSet::new();
    let mut software = BTreeSet::new();
    let mut by_feature: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for path in files("src").iter().filter(|path| path.ends_with(".rs")) {
        let source = text(path);
        if let Some((_, suits)) = source.split_once("fn suits(") {
            let name = path.trim_end_matches(".rs").rsplit('/').next().unwrap();
            let feature =
                ["has_quads", "has_subgroups", "has_f16"].into_iter().find(|has| suits.contains(has)).unwrap();
            let more = suits.match_indices("::record(").map(|(at, _)| suits[..at].rsplit(' ').next().unwrap());
            let more = more.filter(|other| other.starts_with(name));
            by_feature.entry(feature).or_default().extend([name].into_iter().chain(more).map(str::to_string));
        }
        let lines: Vec<&str> = source.lines().collect();
        for pair in lines.windows(2) {
            let arm = |profile: &str| pair[0].contains("=>") && pair[0].contains(profile);
            let (found, text) = match () {
                _ if arm("Profile::Hardware") => (&mut hardware, pair[0]),
                _ if arm("Profile::Software") => (&mut software, pair[0]),
                _ if pair[0].contains("if many") || pair[0].contains("suit_wide(") => (&mut hardware, pair[1]),
                _ => continue,
            };
            let before = text.match_indices("::record").map(|(at, _)| &text[..at]);
            found.extend(
                before.map(|t| t.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_string()),
            );
        }
    }
    type Names = BTreeSet<String>;
    let alone = |these: &Names, others: &Names| these.difference(others).cloned().collect::<Names>();
    let listed = |names: &[&str]| names.iter().map(|name| name.split('/').nth(1).unwrap().into()).collect::<Names>();
    assert_eq!(alone(&hardware, &software), listed(chosen::HARDWARE));
    assert_eq!(alone(&software, &hardware), listed(chosen::SOFTWARE));
    for (feature, names) in
        [("has_quads", chosen::QUADS), ("has_subgroups", chosen::SUBGROUPS), ("has_f16", chosen::F16)]
    {
        assert_eq!(by_feature.remove(feature).unwrap_or_default(), listed(names), "{feature}");
    }
    let kernels: BTreeSet<&str> = all().map(chosen::product).collect();
    for name in [chosen::HARDWARE, chosen::SOFTWARE, chosen::QUADS, chosen::SUBGROUPS, chosen::F16].concat() {
        assert!(kernels.contains(name), "{name} is no kernel");
    }
    for kernel in all() {
        let has = chosen::ALL_FEATURES;
        let somewhere = [Profile::Hardware, Profile::Software].map(|profile| chosen::is_chosen(kernel, profile, has));
        assert!(somewhere.contains(&true), "{} is chosen nowhere", kernel.name);
    }
}
