variable "cloud" {
  description = "Name of the cloud in clouds.yaml."
  type        = string
}

variable "name" {
  description = "Name of the server and of its security group."
  type        = string
  default     = "finetuned"
}

variable "image_id" {
  description = "Image of Ubuntu 24.04, Debian 12 or 13, or one baked with deploy/packer."
  type        = string
}

variable "flavor" {
  description = "Flavor with the GPU, as this cloud calls it."
  type        = string
}

variable "network_id" {
  description = "Network with a way to the internet (packages, models)."
  type        = string
}

variable "key_pair" {
  description = "Key pair for the image's own user; null when the user-data brings the keys (render --authorized-key)."
  type        = string
  default     = null
}

variable "ssh_from" {
  description = "CIDR that may reach port 22. Nothing else is open."
  type        = string

  validation {
    condition     = can(cidrhost(var.ssh_from, 0))
    error_message = "Give a CIDR, such as 203.0.113.7/32."
  }
}

variable "user_data_file" {
  description = "What cloud-init/render wrote; under 48 KB, no secrets in it."
  type        = string
}
