//! What is wrong with a request, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}` under the right status.

use hyper::StatusCode;
use serde_json::{Value, json};

/// A request that is not answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The parameter that it is about.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code }
    }

    /// A parameter that says what cannot be.
    pub fn bad(param: &str, message: impl Into<String>) -> ApiError {
        ApiError::of(param, "invalid_value", message)
    }

    /// A parameter that asks for what is not done here.
    pub fn unsupported(param: &str, message: impl Into<String>) -> ApiError {
        ApiError::of(param, "unsupported_parameter", message)
    }

    /// 400, about `param`.
    pub fn of(param: &str, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.to_owned()), ..ApiError::new(StatusCode::BAD_REQUEST, Some(code), message) }
    }

    /// What failed here.
    pub fn failed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, None, message)
    }

    pub fn json(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            s if s.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}
