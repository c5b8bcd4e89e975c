variable "project" {
  description = "Project id."
  type        = string
}

variable "zone" {
  description = "Zone that has the machine type, such as europe-west4-b."
  type        = string
}

variable "name" {
  description = "Name of the VM, of its network tag and, with -ssh, of the firewall rule."
  type        = string
  default     = "finetuned"
}

variable "network" {
  description = "VPC network, by name or self link."
  type        = string
  default     = "default"
}

variable "subnetwork" {
  description = "Subnetwork; null where the network makes its own."
  type        = string
  default     = null
}

variable "image" {
  description = "Image of Ubuntu 24.04, Debian 12 or 13, or one baked with deploy/packer. An image, not a family that moves."
  type        = string
}

variable "machine_type" {
  description = "a3-highgpu-1g has one H100 (Spot or Flex-start), a3-highgpu-8g eight."
  type        = string
  default     = "a3-highgpu-1g"
}

variable "spot" {
  description = "Spot: cheaper, taken away with 30 seconds' notice, and then stopped with its disk kept."
  type        = bool
  default     = true
}

variable "ssh_from" {
  description = "CIDR that may reach port 22. Nothing else is opened by this file; the network may have rules of its own."
  type        = string

  validation {
    condition     = can(cidrhost(var.ssh_from, 0))
    error_message = "Give a CIDR, such as 203.0.113.7/32."
  }
}

variable "user_data_file" {
  description = "What cloud-init/render wrote; no secrets in it."
  type        = string
}

variable "service_account" {
  description = "E-mail of the VM's service account, for object storage and `stop` or `delete` of deploy/hooks/gcp; null for none."
  type        = string
  default     = null
}

variable "scopes" {
  description = "Scopes of the service account; its roles limit it as well."
  type        = list(string)
  default     = ["storage-rw", "compute-rw"]
}

variable "secure_boot" {
  description = "Only where the driver's modules are signed: Ubuntu's own."
  type        = bool
  default     = false
}

variable "disk_gb" {
  description = "Boot disk: system 20, environments 15, models, checkpoints and prepared data the rest."
  type        = number
  default     = 500
}

variable "disk_type" {
  description = "A type that the machine type can boot from."
  type        = string
  default     = "pd-ssd"
}
