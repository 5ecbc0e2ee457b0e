use super::module;
use crate::{Fault, Memory, ParseError, Reason};

/// A text with one kernel, of two parameters and the registers `%p0`, `%rs0`, `%r0`, `%rd0` and `%rd1`. `body` begins in
/// line 7.
fn text(body: &str) -> String {
    format!(
        ".version 8.1\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 b)\n{{\n\
         .reg .pred %p<1>; .reg .b16 %rs<1>; .reg .b32 %r<1>; .reg .b64 %rd<2>;\n{body}\n}}\n"
    )
}

#[track_caller]
fn check_refused(body: &str, line: u32, message: &str) {
    let error = module(&text(body)).unwrap_err();
    assert_eq!((error.line, error.reason.to_string().as_str()), (line, message), "{body}");
}

#[track_caller]
fn check_unknown(instruction: &str) {
    let name = instruction.split([' ', ';']).next().unwrap();
    check_refused(&format!("\n{instruction}"), 8, &format!("the instruction {name} is not interpreted"));
}

#[test]
fn instructions_that_are_not_interpreted_are_named_with_their_line() {
    for instruction in [
        "bar.sync 0;",
        "shfl.sync.down.b32 %r0, %r0, 1, 31, -1;",
        "atom.global.add.u32 %r0, [%rd0], 1;",
        "ld.shared.u32 %r0, [%rd0];",
        "ld.u32 %r0, [%rd0];",
        "ld.global.f32 %r0, [%rd0];",
        "ld.global.v4.u64 {%rd0, %rd0, %rd0, %rd0}, [%rd0];",
        "ld.global.v3.u32 {%r0, %r0, %r0}, [%rd0];",
        "ld.global.acquire.gpu.u32 %r0, [%rd0];",
        "ld.global.pred %p0, [%rd0];",
        "st.local.u32 [%rd0], %r0;",
        "add.f32 %r0, %r0, %r0;",
        "add.b32 %r0, %r0, %r0;",
        "add.u8 %r0, %r0, %r0;",
        "add.sat.s32 %r0, %r0, %r0;",
        "add %r0, %r0, %r0;",
        "mul.s32 %r0, %r0, %r0;",
        "mul.wide.u64 %rd0, %rd0, %rd0;",
        "and.u32 %r0, %r0, %r0;",
        "shl.pred %p0, %p0, 1;",
        "shl.u32 %r0, %r0, 1;",
        "neg.u32 %r0, %r0;",
        "setp.lo.s32 %p0, %r0, %r0;",
        "setp.lt.b32 %p0, %r0, %r0;",
        "setp.lt.and.s32 %p0, %r0, %r0, %p0;",
        "cvt.rn.f32.s32 %r0, %r0;",
        "cvt.sat.u8.u32 %r0, %r0;",
        "popc.b32 %r0, %r0;",
        "call foo;",
        "cvta.to.shared.u64 %rd0, %rd0;",
        "ret.uni;",
        "bra.foo $x;",
    ] {
        check_unknown(instruction);
    }
}

#[test]
fn names_that_nothing_declares_are_refused() {
    check_refused("add.s32 %r0, %r0, %r1;", 7, "there is no register %r1");
    check_refused("mov.u32 %r0, %clock;", 7, "there is no register %clock");
    check_refused("bra $nowhere;", 7, "there is no label $nowhere");
    check_refused("ld.param.u64 %rd0, [c];", 7, "8 bytes at 0 are not in a parameter c");
    check_refused("ld.param.u64 %rd0, [b];", 7, "8 bytes at 0 are not in a parameter b");
    check_refused("ld.param.u32 %r0, [a+8];", 7, "4 bytes at 8 are not in a parameter a");
    check_refused("ld.param.u32 %r0, [a+2];", 7, "4 bytes at 2 are not in a parameter a");
    check_refused("ld.param.u32 %r0, [a-4];", 7, "4 bytes at -4 are not in a parameter a");
}

#[test]
fn names_are_declared_once() {
    check_refused("x:\nx:", 8, "x is declared twice");
    check_refused(".reg .b32 %q, %rd1;", 7, "%rd1 is declared twice");
    let twice = text("").replace(".u32 b", ".u32 a");
    assert_eq!(module(&twice).unwrap_err().reason, Reason::Duplicate { name: "a".to_owned() });
    let twice = format!("{}.entry k() {{ }}", text(""));
    assert_eq!(module(&twice).unwrap_err().reason, Reason::Duplicate { name: "k".to_owned() });
}

#[test]
fn registers_have_the_width_of_their_instruction() {
    check_refused("add.s64 %rd0, %r0, %rd0;", 7, "%r0 has not the width of add.s64");
    check_refused("add.s32 %rd0, %r0, %r0;", 7, "%rd0 has not the width of add.s32");
    check_refused("mul.wide.u32 %r0, %r0, %r0;", 7, "%r0 has not the width of mul.wide.u32");
    check_refused("shl.b64 %rd0, %rd0, %rd0;", 7, "%rd0 has not the width of shl.b64");
    check_refused("ld.global.u64 %r0, [%rd0];", 7, "%r0 has not the width of ld.global.u64");
    check_refused("ld.global.v2.u8 {%r0, %rs0}, [%rd0];", 7, "%rs0 has not the width of ld.global.v2.u8");
    check_refused("ld.global.u32 %r0, [%r0];", 7, "%r0 has not the width of ld.global.u32");
    check_refused("st.global.u32 [%rd0], %rs0;", 7, "%rs0 has not the width of st.global.u32");
    check_refused("cvt.u64.u32 %rd0, %rs0;", 7, "%rs0 has not the width of cvt.u64.u32");
    check_refused("selp.b32 %r0, 1, 2, %r0;", 7, "%r0 has not the width of selp.b32");
    check_refused("mov.u32 %r0, %p0;", 7, "%p0 has not the width of mov.u32");
}

#[test]
fn what_stands_in_a_wrong_place_is_named() {
    check_refused("mov.u32 %r0 1;", 7, "\"1\" where , belongs");
    check_refused("mov.u32 %r0, 1", 8, "\"}\" where ; belongs");
    check_refused("mov.u32 1, %r0;", 7, "\"1\" where a name belongs");
    check_refused("mov.u32 %tid.x, %r0;", 7, "\"%tid.x\" where a register that can be written belongs");
    check_refused("and.pred %p0, %p0, 1;", 7, "\"1\" where a name belongs");
    check_refused("@%r0 ret;", 7, "\"ret\" where a predicate before belongs");
    check_refused("mov.u64 %rd0, 0x1ffffffffffffffff;", 7, "0x1ffffffffffffffff is no integer of 64 bits");
    check_refused("mov.u32 %r0, 0f3f800000;", 7, "0f3f800000 is no integer of 64 bits");
    check_refused(".shared .b8 x[4];", 7, "the directive .shared is not understood");
    check_refused(".reg .f32 %f<2>;", 7, "\".f32\" where a type of integers or .pred belongs");
    check_refused(".reg .b32 %q<70000>;", 7, "too many registers");
}

#[track_caller]
fn check_module(text: &str, line: u32, message: &str) {
    let error = module(text).unwrap_err();
    assert_eq!(error.to_string(), format!("line {line}: {message}"), "{text}");
}

#[test]
fn texts_that_are_no_modules_are_refused() {
    check_module("", 1, "\"\" where .version belongs");
    check_module("\n.target sm_80", 2, "\".target\" where .version belongs");
    check_module(".version 8", 1, "\"8\" where a version as 8.1 belongs");
    check_module(".version 8.1 .address_size 32", 1, "addresses of 32 bits");
    check_module(".version 8.1\n.func f", 2, "the directive .func is not understood");
    check_module(".version 8.1\n.global .u32 x;", 2, "the directive .global is not understood");
    check_module(".version 8.1\n/* never closed\n", 2, "\"\" where */ belongs");
    check_module(".version 8.1\n.entry k() {", 2, "\"\" where a name belongs");
    check_module(".version 8.1\n.entry k() .reqntid 4 {", 2, "the directive .reqntid is not understood");
    check_module(".version 8.1 .entry k(.param .f32 x) {}", 1, "\".f32\" where a type belongs");
    check_module(".version 8.1 .entry k(.param .b8 x[40000]) {}", 1, "too many bytes of parameters");
}

#[test]
fn no_beginning_of_a_text_makes_the_reader_panic() {
    let whole =
        text("/* é */ $x: @!%p0 bra $x; ld.global.v2.u64 {%rd0, %rd1}, [%rd0+-8]; .pragma \"nounroll\";");
    module(&whole).unwrap();
    let (open, closed) = (whole.find('{').unwrap(), whole.rfind('}').unwrap());
    for end in whole.char_indices().map(|(end, _)| end) {
        let is_refused = module(&whole[..end]).is_err();
        assert!(is_refused || end <= open || end > closed, "{end}");
    }
}

#[test]
fn parameters_are_laid_out_by_their_alignment() {
    let text = ".version 8.1 .entry k(.param .u8 a, .param .u64 .ptr .global .align 16 b, .param .u16 c,
        .param .align 16 .b8 d[24], .param .u32 e) .maxntid 256, 2, 1 .minnctapersm 2 { ret; }";
    let module = module(text).unwrap();
    let kernel = module.kernel("k").unwrap();
    let found: Vec<_> = kernel
        .params()
        .iter()
        .map(|param| (param.name.as_str(), param.offset, param.size, param.align))
        .collect();
    assert_eq!(found, [("a", 0, 1, 1), ("b", 8, 8, 8), ("c", 16, 2, 2), ("d", 32, 24, 16), ("e", 56, 4, 4)]);
    assert_eq!(kernel.param_bytes(), 60);
    assert_eq!(kernel.threads_max(), 512);
}

#[test]
fn a_module_says_what_it_is_for() {
    let module = module(&format!("// made by hand\n{}.entry other() {{ }}", text("ret;"))).unwrap();
    assert_eq!((module.version(), module.target()), ((8, 1), "sm_80"));
    assert_eq!(module.kernels().iter().map(crate::Kernel::name).collect::<Vec<_>>(), ["k", "other"]);
    assert!(module.kernel("k_").is_none());
    assert_eq!(module.kernel("other").unwrap().param_bytes(), 0);
}

/// Memory that has nothing.
struct Nothing;

impl Memory for Nothing {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), crate::BadAddress> {
        Err(crate::BadAddress)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), crate::BadAddress> {
        Err(crate::BadAddress)
    }
}

#[test]
fn comments_and_strings_do_not_move_lines() {
    let body = "// one ; }\n/* two\n three */ .pragma \"a // b\";\nst.global.u8 [%rd0], 1;";
    let module = module(&text(body)).unwrap();
    let fault = module.kernel("k").unwrap().launch([1; 3], [1; 3], &[0; 12], &Nothing).unwrap_err();
    let Fault::BadAddress { place, .. } = fault else { panic!("{fault:?}") };
    assert_eq!(place.line, 10);
}

#[test]
fn an_error_has_its_reason_as_source() {
    let error: ParseError = module("").unwrap_err();
    assert!(std::error::Error::source(&error).is_some());
}
