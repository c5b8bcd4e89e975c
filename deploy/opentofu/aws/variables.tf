variable "region" {
  description = "AWS region, such as eu-north-1."
  type        = string
}

variable "vpc_id" {
  description = "The VPC of the subnet."
  type        = string
}

variable "subnet_id" {
  description = "Subnet with a way to the internet (packages, models)."
  type        = string
}

variable "image_id" {
  description = "AMI of Ubuntu 24.04, Debian 12 or 13, or one baked with deploy/packer. An id, not an alias that moves."
  type        = string
}

variable "instance_type" {
  description = "p5.4xlarge has one H100, p5.48xlarge eight."
  type        = string
  default     = "p5.4xlarge"
}

variable "name" {
  description = "Name tag."
  type        = string
  default     = "finetuned"
}

variable "key_name" {
  description = "EC2 key pair for the image's own user; null when the user-data brings the keys (render --authorized-key)."
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
  description = "What cloud-init/render wrote; under 16 KB, no secrets in it."
  type        = string
}

variable "instance_profile" {
  description = "Instance profile for object storage, and for `stop` and `terminate` of deploy/hooks/aws; null for none."
  type        = string
  default     = null
}

variable "on_poweroff" {
  description = "stop keeps the disk (which bills on), terminate deletes it. A one-time Spot instance needs terminate."
  type        = string
  default     = "stop"

  validation {
    condition     = contains(["stop", "terminate"], var.on_poweroff)
    error_message = "Either stop or terminate."
  }
}

variable "disk_gb" {
  description = "Root disk: system 20, environments 15, models, checkpoints and prepared data the rest."
  type        = number
  default     = 500
}
