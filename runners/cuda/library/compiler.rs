//! Kernels' texts made into a device's own code, once per process.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::nvrtc::sys::{self, nvrtcProgram};
use headroom_device::cuda::libraries::Library;

use crate::cuda::error::CudaError;
use crate::cuda::plan::call::{Instance, Part};

use super::answer::{Answer, answer};

const ELEMENTS: &str = include_str!("../kernels/elements.cu");
const COMMON: &str = include_str!("../kernels/common.cu");

/// Code of a device, with one or more kernels in it.
pub(in crate::cuda) type Code = Arc<Vec<u8>>;

/// Code by compute capability and kernel.
type CodeByName = HashMap<(u32, u32, String), Code>;

/// The code of every kernel made so far.
static MADE: LazyLock<Mutex<CodeByName>> = LazyLock::new(Mutex::default);

/// The text of kernels: what all share, the parts that they are made of, and themselves.
pub(in crate::cuda) fn source(instances: &[&Instance]) -> String {
    let mut parts: Vec<Part> = instances.iter().filter_map(|instance| instance.part).collect();
    parts.sort_unstable();
    parts.dedup();
    let mut text = format!("{ELEMENTS}\n{COMMON}\n");
    for part in parts {
        text.push_str(part.source());
        text.push('\n');
    }
    for instance in instances {
        text.push_str(&instance.text);
    }
    text
}

/// The code in which each of these kernels lies. Those that no code of this process has yet are made together.
///
/// # Errors
/// When the compiler refuses: a defect of headroom, or a compiler too old for the device.
pub(in crate::cuda) fn code(capability: (u32, u32), wanted: &[&Instance]) -> Result<Vec<Code>, CudaError> {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let key = |instance: &Instance| (capability.0, capability.1, instance.name.clone());
    let mut missing: Vec<&Instance> =
        wanted.iter().copied().filter(|instance| !made.contains_key(&key(instance))).collect();
    missing.sort_by(|a, b| a.name.cmp(&b.name));
    missing.dedup_by(|a, b| a.name == b.name);
    if !missing.is_empty() {
        let names = || missing.iter().map(|instance| instance.name.as_str()).collect::<Vec<_>>().join(", ");
        let code = Arc::new(compile(&source(&missing), capability, names)?);
        made.extend(missing.iter().map(|instance| (key(instance), Arc::clone(&code))));
    }
    Ok(wanted.iter().filter_map(|instance| made.get(&key(instance)).cloned()).collect())
}

/// A program of the compiler, given back when dropped.
struct Source(nvrtcProgram);

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: the program is this value's own and was made by the compiler.
        let _ = unsafe { answer!(sys::nvrtcDestroyProgram(&raw mut self.0)) };
    }
}

fn check(call: &str, answer: Answer) -> Result<(), CudaError> {
    super::answer::check(Library::Nvrtc, call, answer)
}

fn compile(text: &str, (major, minor): (u32, u32), names: impl Fn() -> String) -> Result<Vec<u8>, CudaError> {
    let text_with_zero = |text: &str| {
        CString::new(text).map_err(|_| CudaError::Compilation { kernels: names(), log: "a zero byte".into() })
    };
    let text = text_with_zero(text)?;
    let options = [text_with_zero(&format!("--gpu-architecture=sm_{major}{minor}"))?, text_with_zero("--std=c++17")?];
    let option_texts = options.each_ref().map(|option| option.as_ptr());
    let mut program = Source(std::ptr::null_mut());
    // SAFETY: the texts end in a zero byte and live until the program is given back at the end of this function; no
    // headers are handed over.
    unsafe {
        let headers = std::ptr::null();
        let made = answer!(sys::nvrtcCreateProgram(
            &raw mut program.0,
            text.as_ptr(),
            c"headroom.cu".as_ptr(),
            0,
            headers,
            headers
        ));
        check("nvrtcCreateProgram", made)?;
    }
    // SAFETY: the program was just made; the options are as many as is said and live through the call.
    let compiled =
        unsafe { answer!(sys::nvrtcCompileProgram(program.0, option_texts.len() as i32, option_texts.as_ptr())) };
    if let Err(refusal) = check("nvrtcCompileProgram", compiled) {
        let log = format!("{refusal}: {}", log_of(&program)?);
        return Err(CudaError::Compilation { kernels: names(), log });
    }
    let mut bytes = 0;
    // SAFETY: the program was compiled for a device, not for a virtual one, so it has code; the place is valid.
    check("nvrtcGetCUBINSize", unsafe { answer!(sys::nvrtcGetCUBINSize(program.0, &raw mut bytes)) })?;
    let mut code = vec![0_u8; bytes];
    // SAFETY: the code is as long as the compiler said.
    check("nvrtcGetCUBIN", unsafe { answer!(sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast::<c_char>())) })?;
    Ok(code)
}

fn log_of(program: &Source) -> Result<String, CudaError> {
    let mut bytes = 0;
    // SAFETY: the program lives; the place is valid.
    check("nvrtcGetProgramLogSize", unsafe { answer!(sys::nvrtcGetProgramLogSize(program.0, &raw mut bytes)) })?;
    let mut log = vec![0_u8; bytes];
    // SAFETY: the log is as long as the compiler said.
    check("nvrtcGetProgramLog", unsafe {
        answer!(sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast::<c_char>()))
    })?;
    Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned())
}
