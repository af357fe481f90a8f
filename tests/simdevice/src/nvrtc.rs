//! NVRTC: knows one program, the kernels that the objects were built from, and refuses any other.

use crate::kernels::{Param, library};
use crate::misuse;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;

const SUCCESS: i32 = 0;
const INVALID_INPUT: i32 = 3;
const INVALID_OPTION: i32 = 5;
const COMPILATION: i32 = 6;

/// What the kernels' objects were built from.
const SOURCE: &str = include_str!(env!("SIM_PARING_SOURCE"));
/// The name of that source among the objects' modules.
const MODULE: &str = "paring";

pub struct Program {
    source: String,
    ptx: Option<String>,
    log: String,
}

/// What stands before the names of a module's kernels in its PTX.
pub const MARK: &str = "// simdevice module: ";

/// PTX of a module: its kernels' names and parameters, as `nvcc` writes them.
fn ptx(module: &str) -> String {
    let mut text = format!("{MARK}{module}\n.version 9.0\n.target sm_90\n.address_size 64\n");
    for kernel in library().all().iter().filter(|k| k.module == module) {
        let name = kernel.name;
        let params: Vec<String> = kernel.params.iter().enumerate().map(|(i, p)| declared(name, i, p)).collect();
        let _ = writeln!(text, ".visible .entry {name}(\n{}\n)\n{{\nret;\n}}", params.join(",\n"));
    }
    text
}

fn declared(name: &str, i: usize, param: &Param) -> String {
    match param.size {
        1 | 2 | 4 | 8 => format!("\t.param .b{} {name}_param_{i}", param.size * 8),
        n => format!("\t.param .align {} .b8 {name}_param_{i}[{n}]", param.align),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut Program,
    source: *const c_char,
    _name: *const c_char,
    headers: c_int,
    _: *const *const c_char,
    _: *const *const c_char,
) -> i32 {
    if program.is_null() || source.is_null() || headers != 0 {
        return INVALID_INPUT;
    }
    // SAFETY: a C string, by the call's contract.
    let source = unsafe { CStr::from_ptr(source) }.to_string_lossy().into_owned();
    // SAFETY: checked above.
    unsafe { *program = Box::into_raw(Box::new(Program { source, ptx: None, log: String::new() })) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Program,
    count: c_int,
    options: *const *const c_char,
) -> i32 {
    // SAFETY: made by `nvrtcCreateProgram`.
    let program = unsafe { &mut *program };
    for i in 0..count as usize {
        // SAFETY: as many C strings as are said.
        let option = unsafe { CStr::from_ptr(*options.add(i)) }.to_string_lossy();
        let known = option.strip_prefix("--gpu-architecture=compute_").is_some_and(|v| matches!(v, "80" | "90"));
        if !known {
            program.log = format!("nvrtc: error: unrecognized option {option}\n");
            return INVALID_OPTION;
        }
    }
    if program.source != SOURCE {
        program.log = "these are not the kernels that the simulated device was built with: build it again\n".into();
        return COMPILATION;
    }
    program.ptx = Some(ptx(MODULE));
    SUCCESS
}

/// `of`'s text with the zero at its end, counted or copied.
fn text_of(text: Option<&str>, size: *mut usize, copy: *mut c_char) -> i32 {
    let Some(text) = text else { return INVALID_INPUT };
    // SAFETY: one of both is null; the caller has room for the size that it was told.
    unsafe {
        if !size.is_null() {
            *size = text.len() + 1;
        }
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr(), copy.cast(), text.len());
            *copy.add(text.len()) = 0;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTXSize(program: *mut Program, size: *mut usize) -> i32 {
    // SAFETY: made by `nvrtcCreateProgram`.
    text_of(unsafe { &*program }.ptx.as_deref(), size, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTX(program: *mut Program, to: *mut c_char) -> i32 {
    // SAFETY: as above.
    text_of(unsafe { &*program }.ptx.as_deref(), std::ptr::null_mut(), to)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: *mut Program, size: *mut usize) -> i32 {
    // SAFETY: as above.
    text_of(Some(&unsafe { &*program }.log), size, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: *mut Program, to: *mut c_char) -> i32 {
    // SAFETY: as above.
    text_of(Some(&unsafe { &*program }.log), std::ptr::null_mut(), to)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> i32 {
    // SAFETY: made by `nvrtcCreateProgram`.
    unsafe {
        if program.is_null() || (*program).is_null() {
            misuse!("nvrtcDestroyProgram: no program");
        }
        drop(Box::from_raw(*program));
    }
    SUCCESS
}
